"""The running thing on a FakeCluster: watches, queue, Lease, health, and what wakes whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from shoal_operator.causes import Concern, concerned
from shoal_operator.cluster.fake import Call
from shoal_operator.cluster.kinds import DEPLOYMENT, NODE, POD, SERVICE, SHARDED_MODEL, Ref
from shoal_operator.controller import SILENCE_SECONDS, UNDELIVERED_SECONDS, Controller
from shoal_operator.errors import LeadershipLost, api_error
from shoal_operator.health import serve_health
from shoal_operator.settings import OperatorSettings
from shoaltest.waiting import until_elsewhere

KEY = Ref(SHARDED_MODEL, "ai", "llama-8b")


@asynccontextmanager
async def running(office: Any, **changes: Any) -> AsyncIterator[Controller]:
    settings = OperatorSettings(
        **({"stage_image": "stage:1", "router_image": "router:1", "lease_seconds": 3} | changes)
    )
    controller = Controller(office.cluster, settings)
    task = asyncio.create_task(controller.run())
    kopf = asyncio.create_task(deliver(office, controller))
    try:
        yield controller
    finally:
        for each in (task, kopf):
            each.cancel()
        with suppress(asyncio.CancelledError, BaseExceptionGroup):
            await asyncio.gather(task, kopf)


async def deliver(office: Any, controller: Controller) -> None:
    """kopf's part: every event of a ShardedModel."""
    async for event in office.cluster.watch(SHARDED_MODEL, "0"):
        controller.saw(event.change.value, event.object)


async def serving(office: Any) -> None:
    def ready() -> bool:
        office.workloads.step()
        conditions = office.model().get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    await until_elsewhere(ready)


async def settled(office: Any, controller: Controller) -> None:
    await until_elsewhere(lambda: controller.queue.length == 0 or not _due_soon(controller))


def _due_soon(controller: Controller) -> bool:
    due = controller.queue.schedule.next_due()
    return bool(controller.queue.schedule.busy) or (due is not None and due < asyncio.get_running_loop().time() + 5)


async def test_it_serves_and_then_is_silent(office):
    async with running(office) as controller:
        await serving(office)
        await settled(office, controller)
        before = len(office.cluster.writes)
        for _ in range(3):
            await controller._resync()
            await settled(office, controller)
        assert [ref for _, ref in office.cluster.writes[before:] if ref.kind.kind != "Lease"] == []
        assert controller.metrics.reconciles.labels("defect")._value.get() == 0


async def test_case_91_a_change_of_a_child_alone_is_enough(office):
    async with running(office):
        await serving(office)
        office.cluster.remove(Ref(SERVICE, "ai", "llama-8b"))
        await until_elsewhere(lambda: Ref(SERVICE, "ai", "llama-8b") in office.cluster.objects)


async def test_an_operator_that_starts_late_finds_everything(office):
    async with running(office):
        await serving(office)
    names = office.names(DEPLOYMENT)
    before = len(office.cluster.writes)
    async with running(office) as controller:
        await until_elsewhere(lambda: controller.metrics.leading._value.get() == 1)
        await settled(office, controller)
        assert office.names(DEPLOYMENT) == names
        assert [ref for _, ref in office.cluster.writes[before:] if ref.kind.kind != "Lease"] == []


async def test_two_operators_one_acts(office):
    async with running(office, pod_name="one") as one, running(office, pod_name="two") as two:
        await serving(office)
        done = [each.metrics.reconciles.labels("done")._value.get() for each in (one, two)]
        assert sorted(bool(count) for count in done) == [False, True]


async def test_a_leader_that_loses_its_lease_ends(office):
    settings = OperatorSettings(lease_seconds=3)
    controller = Controller(office.cluster, settings)
    task = asyncio.create_task(controller.run())
    await until_elsewhere(lambda: controller.metrics.leading._value.get() == 1)

    def no_leases(call: Call) -> None:
        if call.ref.kind.kind == "Lease":
            raise api_error("get lease", 503, "injected")

    office.cluster.fault = no_leases
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.timeout(20):
            await task
    assert caught.group_contains(LeadershipLost, depth=None)
    assert "leads no more" in (controller.unhealthy(0) or "")


async def test_case_101_a_watch_that_is_deaf_is_noticed_and_made_up_for(office):
    controller = Controller(office.cluster, OperatorSettings())
    loop = asyncio.get_running_loop()
    await controller.check_delivery()
    # Nobody delivers: it is known all the same, but the watch is under suspicion.
    assert controller.cache.get(KEY) is not None
    assert controller.unhealthy(loop.time()) is None
    late = loop.time() + UNDELIVERED_SECONDS + 1
    assert "has not delivered" in (controller.unhealthy(late) or "")
    controller.saw("ADDED", office.model())
    assert controller.unhealthy(late) is None


async def test_case_101_a_watch_that_is_silent_fails_liveness(office):
    async with running(office) as controller:
        await until_elsewhere(lambda: controller.ready)
        now = asyncio.get_running_loop().time()
        assert controller.unhealthy(now) is None
        assert "silent" in (controller.unhealthy(now + SILENCE_SECONDS + 1) or "")


async def test_probes_answer(office):
    controller = Controller(office.cluster, OperatorSettings())
    runner = await serve_health(controller, 0)
    (port,) = {address[1] for address in runner.addresses if len(address) == 2}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        assert (await http.get("/healthz")).status == 200
        assert (await http.get("/readyz")).status == 503
    await runner.cleanup()


async def test_a_defect_in_one_model_does_not_stop_another(office, make_model):
    async with running(office) as controller:
        reconcile = controller._reconciler.reconcile

        async def broken(key: Any) -> Any:
            if key[1] == "broken":
                raise RuntimeError("a defect")
            return await reconcile(key)

        controller._reconciler.reconcile = broken  # type: ignore[method-assign]
        office.cluster.put(make_model("broken"))
        await serving(office)
        assert controller.metrics.reconciles.labels("defect")._value.get() > 0


def test_heartbeats_of_nodes_concern_nobody(make_node):
    before = make_node("pc-1")
    after = json.loads(json.dumps(before))
    after["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-11-29T12:00:00Z"
    assert concerned(before, after) == (None, Concern.NOBODY)
    after["status"]["conditions"][0]["status"] = "Unknown"
    assert concerned(before, after) == (None, Concern.EVERYBODY)
    assert concerned(before, None) == (None, Concern.EVERYBODY)
    assert concerned(None, before) == (None, Concern.EVERYBODY)


def test_pods_of_strangers_concern_those_that_wait_for_room():
    pod = {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {"name": "p", "namespace": "x"},
        "spec": {"nodeName": "pc-1"},
        "status": {"phase": "Running"},
    }
    assert concerned(pod, {**pod, "metadata": {**pod["metadata"], "resourceVersion": "2"}})[1] is Concern.NOBODY
    assert concerned(pod, {**pod, "status": {"phase": "Succeeded"}})[1] is Concern.WAITING
    assert concerned(pod, None)[1] is Concern.WAITING


async def test_a_model_that_waits_for_room_gets_it_when_another_goes(make_office, make_node, make_model):
    office = make_office(make_node("pc-01", "28Gi"))
    office.cluster.put(make_model("first"))
    async with running(office):
        await until_elsewhere(lambda: _condition(office, "first", "Ready") == "True")
        office.cluster.put(make_model("second"))
        await until_elsewhere(lambda: _condition(office, "second", "Planned") == "False")
        office.cluster.remove(Ref(SHARDED_MODEL, "ai", "first"))
        await until_elsewhere(lambda: _condition(office, "second", "Ready") == "True")


def _condition(office: Any, name: str, kind: str) -> str:
    office.workloads.step()
    for each in office.model(name).get("status", {}).get("conditions", []):
        if each["type"] == kind:
            return str(each["status"])
    return ""


async def test_a_new_node_wakes_everybody(make_office, make_node, make_model):
    office = make_office()
    office.cluster.put(make_model())
    async with running(office):
        await until_elsewhere(lambda: _condition(office, "llama-8b", "Planned") == "False")
        office.cluster.put(make_node("pc-01", "28Gi"))
        await until_elsewhere(lambda: _condition(office, "llama-8b", "Ready") == "True")
        assert Ref(NODE, "", "pc-01") in office.cluster.objects
