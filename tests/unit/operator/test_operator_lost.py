"""What a router says of its stages: a standby takes over before Kubernetes knows that a PC is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
from aiohttp import web

from shoal_operator.cluster import routers
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.kinds import CONFIG_MAP, POD, Ref
from shoal_operator.cluster.routers import HttpRouters, RouterSilent
from shoal_operator.lost import LostStages

SPARE = {"nodeSelector": {"shoal.dev/platform": "lunar-lake"}, "sparePods": 1}
KEY = ("ai", "llama-8b")


def plan_of(office) -> dict:
    return json.loads(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])


@pytest.fixture
async def settled(make_office, make_node):
    """Four equal PCs: two stages, one standby, one PC that holds nothing; `said` is what the router says."""
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 5)))
    office.said = frozenset()
    office.reconciler._lost = lambda key: office.said if key == KEY else frozenset()
    office.apply(stages={"count": 2}, placement=SPARE)
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
    return office


def guarded(office) -> tuple[dict, dict]:
    """The stage that the standby is for, and the standby."""
    (standby,) = plan_of(office)["standbys"]
    return plan_of(office)["pipelines"][0]["stages"][standby["stage"]["index"]], standby["stage"]


async def test_the_standby_takes_over_while_the_node_is_still_called_ready(settled):
    stage, standby = guarded(settled)
    settled.said = frozenset({stage["address"]})
    await settled.reconcile()
    now = plan_of(settled)["pipelines"][0]["stages"][stage["index"]]
    assert (now["node"], now["address"]) == (standby["node"], standby["address"])
    assert [each["stage"]["node"] for each in plan_of(settled)["standbys"]] != [stage["node"]]


async def test_a_stage_without_a_standby_waits_and_the_condition_names_it(settled):
    guarded_stage, _ = guarded(settled)
    (other,) = [each for each in plan_of(settled)["pipelines"][0]["stages"] if each["index"] != guarded_stage["index"]]
    before = plan_of(settled)
    settled.said = frozenset({other["address"]})
    await settled.settle()
    assert plan_of(settled)["pipelines"] == before["pipelines"]
    condition = settled.condition("StagesReady")
    assert (condition["status"], condition["reason"]) == ("False", "Unreachable")
    assert f"stage {other['index']} on {other['node']}" in condition["message"]
    settled.said = frozenset()
    await settled.settle()
    assert settled.condition("StagesReady")["status"] == "True"


async def test_a_standby_beside_another_lost_stage_is_not_trusted(make_office, make_node):
    """Two pipelines on three PCs' neighbours: nothing is put on a PC whose own stage is gone."""
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 4)))
    office.said = frozenset()
    office.reconciler._lost = lambda _: office.said
    office.apply(stages={"count": 2}, placement=SPARE)
    await office.settle()
    stage, standby = guarded(office)
    office.said = frozenset({stage["address"]})
    await office.reconcile()
    # The PC that is left has the pod of the old stage on it, and may be gone: no standby is put there yet.
    assert "standbys" not in plan_of(office)
    assert plan_of(office)["pipelines"][0]["stages"][stage["index"]]["node"] == standby["node"]


async def test_a_pc_whose_old_stage_has_ended_stands_by(make_office, make_node):
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 4)))
    office.said = frozenset()
    office.reconciler._lost = lambda _: office.said
    office.apply(stages={"count": 2}, placement=SPARE)
    await office.settle()
    stage, _ = guarded(office)
    (pod,) = [
        each for each in office.cluster.of_kind(POD) if stage["address"].startswith(each["metadata"]["name"][:-2])
    ]
    office.said = frozenset({stage["address"]})
    await office.reconcile()
    # A kubelet that is gone does not end its pod, whatever was deleted.
    office.cluster.put({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-11-29T12:00:00Z"}})
    office.said = frozenset()
    await office.reconcile()
    assert "standbys" not in plan_of(office)
    office.cluster.remove(Ref(POD, "ai", pod["metadata"]["name"]))
    await office.settle()
    assert [each["stage"]["node"] for each in plan_of(office)["standbys"]] == [stage["node"]]


# ---- listening


def router_pod(address: str = "10.0.0.7", **metadata) -> dict:
    labels = {"shoal.dev/model": "llama-8b", "shoal.dev/role": "router"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "r", "namespace": "ai", "labels": labels, "resourceVersion": "1", **metadata},
        "status": {"phase": "Running", "podIP": address},
    }


@pytest.fixture
def cache(office) -> Cache:
    office.refresh()
    office.cache.seen(router_pod())
    return office.cache


async def test_what_is_said_is_a_cause_and_counts_until_the_router_is_silent(cache):
    causes: asyncio.Queue = asyncio.Queue()
    silent, again = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    async def routers_say(address: str) -> AsyncGenerator[frozenset[str], None]:
        asked.append(address)
        if len(asked) == 1:
            yield frozenset()
            yield frozenset({"s0.x:1"})
            await silent.wait()
            raise RouterSilent("it is gone")
        again.set()
        yield frozenset()
        await asyncio.Event().wait()

    lost = LostStages(cache, routers_say, causes.put_nowait, retry_seconds=0.001)
    task = asyncio.create_task(lost.run())
    async with asyncio.timeout(10):
        assert await causes.get() == KEY
        assert lost.of(KEY) == {"s0.x:1"}
        assert lost.of(("ai", "another")) == frozenset()
        silent.set()
        assert await causes.get() == KEY
        assert lost.of(KEY) == frozenset()
        await again.wait()
    assert set(asked) == {"10.0.0.7"}
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_the_words_of_a_real_stream_are_understood(monkeypatch):
    async def said(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"lost": []}\n{"lost": ["a:1"], "more": 1}\n')
        return response

    app = web.Application()
    app.router.add_get("/lost", said)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(routers.names, "METRICS_PORT", runner.addresses[0][1])
    assert [each async for each in HttpRouters().lost("127.0.0.1")] == [frozenset(), frozenset({"a:1"})]
    await runner.cleanup()
    with pytest.raises(RouterSilent, match=r"127\.0\.0\.1 says nothing"):
        await anext(HttpRouters().lost("127.0.0.1"))
