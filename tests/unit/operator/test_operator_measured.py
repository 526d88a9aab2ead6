"""status.measured: asked of the router once, kept while the stages stay where they are, and written once."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from shoal.measured import MEASURED_PATH, Measured, placement_of
from shoal.plan.document import Plan
from shoal_operator import names
from shoal_operator.cluster.kinds import CONFIG_MAP, POD, Ref
from shoal_operator.cluster.routers import HttpRouters

ADDRESS = "10.42.0.7"


def plan_of(office) -> Plan:
    return Plan.model_validate_json(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])


def give_address(office) -> None:
    for pod in office.cluster.of_kind(POD):
        if pod["metadata"]["labels"].get(names.ROLE_LABEL) == names.ROUTER:
            office.cluster.put({**pod, "status": {**pod["status"], "podIP": ADDRESS}})


def measured(placement: str, rate: float = 8.4) -> Measured:
    return Measured(placement=placement, firstTokenMs=412.5, tokensPerSecond=rate, promptTokens=60)


@pytest.fixture
async def ready(office):
    """It serves; the router has not measured yet."""
    await office.settle()
    office.workloads.step = lambda: None  # pods keep their address
    give_address(office)
    await office.reconcile()
    return office


async def test_it_is_written_once_and_asked_for_no_more(ready):
    assert "measured" not in ready.model()["status"]
    outcome = await ready.reconcile()
    assert outcome.look_again == 10
    ready.routers.found[ADDRESS] = measured(placement_of(plan_of(ready)))
    writes = len(ready.cluster.writes)
    outcome = await ready.reconcile()
    assert ready.model()["status"]["measured"] == {
        "placement": placement_of(plan_of(ready)),
        "firstTokenMilliseconds": 412.5,
        "tokensPerSecond": 8.4,
        "promptTokens": 60,
    }
    assert len(ready.cluster.writes) == writes + 1
    assert outcome.look_again > 1000
    asked = len(ready.routers.asked)
    ready.routers.found[ADDRESS] = measured(placement_of(plan_of(ready)), rate=9.9)
    for _ in range(3):
        await ready.reconcile()
    assert len(ready.routers.asked) == asked
    assert len(ready.cluster.writes) == writes + 1


async def test_an_operator_that_starts_afresh_asks_nobody(ready):
    ready.routers.found[ADDRESS] = measured(placement_of(plan_of(ready)))
    await ready.reconcile()
    writes = len(ready.cluster.writes)
    ready.new_operator()
    await ready.reconcile()
    assert ready.routers.asked == []
    assert len(ready.cluster.writes) == writes


async def test_figures_of_another_plan_are_not_taken(ready):
    ready.routers.found[ADDRESS] = measured("another")
    await ready.reconcile()
    assert "measured" not in ready.model()["status"]


async def test_stages_that_move_are_measured_anew(office):
    await office.settle()
    before = placement_of(plan_of(office))
    give_address(office)
    office.routers.found[ADDRESS] = measured(before)
    await office.reconcile()
    assert office.model()["status"]["measured"]["placement"] == before
    lost = plan_of(office).pipelines[0].stages[1].node
    office.workloads.lose(lost, office.now)
    office.now = office.now.replace(hour=13)
    await office.settle()
    assert placement_of(plan_of(office)) != before
    assert "measured" not in office.model()["status"]


async def test_a_router_tells_over_http_and_one_that_does_not_is_no_failure(monkeypatch):
    said = {"status": 204, "body": ""}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=said["status"], text=said["body"])

    app = web.Application()
    app.add_routes([web.get(MEASURED_PATH, answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(names, "METRICS_PORT", runner.addresses[0][1])
    try:
        assert await HttpRouters().measured("127.0.0.1") is None
        said |= {"status": 200, "body": measured("here").model_dump_json(by_alias=True)}
        assert await HttpRouters().measured("127.0.0.1") == measured("here")
        said |= {"body": json.dumps({"placement": "here"})}
        assert await HttpRouters().measured("127.0.0.1") is None
        said |= {"body": "<html>"}
        assert await HttpRouters().measured("127.0.0.1") is None
    finally:
        await runner.cleanup()
    assert await HttpRouters().measured("127.0.0.1") is None
