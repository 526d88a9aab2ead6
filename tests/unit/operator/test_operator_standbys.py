"""placement.sparePods: stages that are loaded beside the pipeline take the place of a lost one, at once."""

from __future__ import annotations

import datetime
import json

import pytest

from shoal_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NODE, Ref

SPARE = {"nodeSelector": {"shoal.dev/platform": "lunar-lake"}, "sparePods": 1}


def after(office, seconds: float) -> None:
    office.now += datetime.timedelta(seconds=seconds)


def plan_of(office) -> dict:
    return json.loads(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])


def standby_of(office) -> dict:
    (found,) = plan_of(office)["standbys"]
    return found["stage"]


def deployment_on(office, node: str) -> dict:
    (found,) = [
        obj
        for obj in office.cluster.of_kind(DEPLOYMENT)
        if node in json.dumps(obj["spec"]["template"]["spec"].get("affinity", {}))
    ]
    return found


@pytest.fixture
async def settled(make_office, make_node):
    """Five equal PCs: two stages, one standby, two PCs that hold nothing."""
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 6)))
    office.apply(stages={"count": 2}, placement=SPARE)
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
    return office


async def test_a_standby_serves_the_blocks_of_a_stage_on_a_node_of_its_own(settled):
    standby = standby_of(settled)
    stages = {stage["index"]: stage for stage in plan_of(settled)["pipelines"][0]["stages"]}
    twin = stages[standby["index"]]
    assert standby["node"] not in {stage["node"] for stage in stages.values()}
    assert (standby["blockStart"], standby["blockEnd"]) == (twin["blockStart"], twin["blockEnd"])
    made = deployment_on(settled, standby["node"])
    assert made["metadata"]["labels"]["shoal.dev/standby"] == "true"
    assert standby["address"].startswith(made["metadata"]["name"])
    status = settled.model()["status"]
    assert [(each["node"], each["ready"]) for each in status["plan"]["standbys"]] == [(standby["node"], True)]
    assert standby["node"] not in status["plan"]["spares"]
    assert status["stages"] == "2/2"
    assert settled.condition("Degraded")["status"] == "False"


async def test_it_takes_over_at_once_and_its_pod_stays_the_same(settled):
    standby = standby_of(settled)
    lost = plan_of(settled)["pipelines"][0]["stages"][standby["index"]]["node"]
    before = deployment_on(settled, standby["node"])
    settled.workloads.lose(lost, settled.now)
    await settled.reconcile()
    stage = plan_of(settled)["pipelines"][0]["stages"][standby["index"]]
    assert (stage["node"], stage["address"]) == (standby["node"], standby["address"])
    now = deployment_on(settled, standby["node"])
    assert now["metadata"]["uid"] == before["metadata"]["uid"]
    assert now["spec"] == before["spec"], "its pod would be started anew"
    assert "shoal.dev/standby" not in now["metadata"]["labels"]
    # Its own place is taken by another PC.
    await settled.settle()
    assert standby_of(settled)["node"] not in (lost, standby["node"])
    assert settled.condition("Ready")["status"] == "True"


async def test_the_other_stage_is_not_touched(settled):
    standby = standby_of(settled)
    stages = plan_of(settled)["pipelines"][0]["stages"]
    other = stages[1 - standby["index"]]["node"]
    before = deployment_on(settled, other)
    settled.workloads.lose(stages[standby["index"]]["node"], settled.now)
    await settled.settle()
    assert deployment_on(settled, other) == before


async def test_a_stage_without_a_standby_waits_as_before(settled):
    standby = standby_of(settled)
    lost = plan_of(settled)["pipelines"][0]["stages"][1 - standby["index"]]["node"]
    settled.workloads.lose(lost, settled.now)
    await settled.reconcile()
    assert plan_of(settled)["pipelines"][0]["stages"][1 - standby["index"]]["node"] == lost
    after(settled, 31)
    await settled.settle()
    assert plan_of(settled)["pipelines"][0]["stages"][1 - standby["index"]]["node"] != lost


async def test_a_standby_that_is_not_loaded_yet_does_not_take_over_early(settled):
    standby = standby_of(settled)
    name = deployment_on(settled, standby["node"])["metadata"]["name"]
    settled.workloads.unwell = lambda pod: (
        {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
        if pod["metadata"]["labels"].get("shoal.dev/name") == name
        else None
    )
    settled.workloads.step()
    lost = plan_of(settled)["pipelines"][0]["stages"][standby["index"]]["node"]
    settled.workloads.lose(lost, settled.now)
    await settled.settle()
    assert plan_of(settled)["pipelines"][0]["stages"][standby["index"]]["node"] == lost
    assert [each["ready"] for each in settled.model()["status"]["plan"]["standbys"]] == [False]


async def test_a_lost_standby_is_replaced(settled):
    lost = standby_of(settled)["node"]
    settled.workloads.lose(lost, settled.now)
    await settled.settle()
    assert standby_of(settled)["node"] == lost, "a short absence moves nothing"
    after(settled, 31)
    await settled.settle()
    assert standby_of(settled)["node"] != lost
    assert settled.condition("Ready")["status"] == "True"


async def test_without_a_node_for_it_that_is_said(make_office, make_node):
    office = make_office(make_node("pc-01", "14Gi"), make_node("pc-02", "14Gi"))
    office.apply(stages={"count": 2}, placement=SPARE)
    await office.settle()
    degraded = office.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NoStandby")
    assert "add 1 node" in degraded["message"]
    assert office.condition("Ready")["status"] == "True"
    office.cluster.put(make_node("pc-03", "14Gi"))
    await office.settle()
    assert standby_of(office)["node"] == "pc-03"
    assert office.condition("Degraded")["status"] == "False"


async def test_two_standbys_stand_by_for_two_stages(make_office, make_node):
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 6)))
    office.apply(stages={"count": 2}, placement=SPARE | {"sparePods": 2})
    await office.settle()
    assert sorted(each["stage"]["index"] for each in plan_of(office)["standbys"]) == [0, 1]


async def test_a_standby_counts_for_other_models(settled, make_model):
    """Its node has a GPU and memory for one stage: another model does not get it."""
    settled.cluster.put(make_model("other", stages={"count": 2}, placement={"nodeSelector": {}}))
    for _ in range(8):
        await settled.reconcile("other")
        settled.workloads.step()
    plan = json.loads(settled.cluster.objects[Ref(CONFIG_MAP, "ai", "other-plan")]["data"]["plan.json"])
    mine = {stage["node"] for stage in plan_of(settled)["pipelines"][0]["stages"]} | {standby_of(settled)["node"]}
    assert not mine & {stage["node"] for stage in plan["pipelines"][0]["stages"]}


async def test_memory_that_strangers_take_changes_no_plan(settled):
    before = plan_of(settled)
    node = settled.cluster.objects[Ref(NODE, "", standby_of(settled)["node"])]
    node["status"]["allocatable"]["memory"] = "13Gi"
    settled.cluster.put(node)
    await settled.settle()
    assert plan_of(settled) == before


async def test_a_plan_without_standbys_is_the_document_that_it_was(office):
    office.apply(stages={"count": 2}, placement={"nodeSelector": SPARE["nodeSelector"]})
    await office.settle()
    assert "standbys" not in plan_of(office)
    assert office.model()["status"]["plan"]["standbys"] == []
