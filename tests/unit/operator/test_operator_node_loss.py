"""Nodes that go, come back, are cordoned or lose their label: what moves, what stays, and what is said."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from shoal_operator.cluster.kinds import DEPLOYMENT, NODE, Ref


def after(office: Any, seconds: float) -> None:
    office.now += datetime.timedelta(seconds=seconds)


@pytest.fixture
async def settled(office):
    await office.settle()
    return office


@pytest.fixture
def tight(make_office: Callable[..., Any], make_node: Callable[..., Any], make_model: Callable[..., Any]) -> Any:
    """Two PCs that hold the model only together."""
    office = make_office(make_node("pc-01", "10Gi"), make_node("pc-02", "10Gi"))
    office.cluster.put(make_model(scheduler={"streams": 2, "maxContext": 2048}))
    return office


async def test_a_short_absence_moves_nothing(settled):
    before = settled.stages()
    node = before[1][1]
    settled.workloads.lose(node, settled.now)
    after(settled, 29)
    outcome = await settled.reconcile()
    assert settled.stages() == before
    assert outcome.look_again == pytest.approx(1.5)
    assert settled.condition("Degraded")["reason"] == "NodeLost"
    assert settled.condition("StagesReady")["reason"] == "NodeLost"
    assert settled.condition("Ready")["status"] == "False"
    settled.workloads.bring_back(node, settled.now)
    await settled.settle()
    assert settled.stages() == before
    assert settled.condition("Ready")["status"] == "True"


async def test_case_31_after_the_time_only_the_lost_stage_moves(settled):
    before, names = settled.stages(), settled.names(DEPLOYMENT)
    lost = before[1][1]
    settled.workloads.lose(lost, settled.now)
    after(settled, 31)
    await settled.settle()
    now = settled.stages()
    assert now[0] == before[0]
    assert now[1][1] != lost
    assert now[1][2] == before[1][2]
    assert len(set(settled.names(DEPLOYMENT)) - set(names)) == 1
    assert settled.condition("Ready")["status"] == "True"
    assert settled.condition("Degraded")["status"] == "False"
    reasons = settled.model()["status"]["plan"]["reasons"]
    assert any(f"stage 1 moved from {lost} to" in reason for reason in reasons)


async def test_case_4_a_node_that_returns_is_a_spare_again_and_disturbs_nobody(settled):
    before = settled.stages()
    lost = before[1][1]
    settled.workloads.lose(lost, settled.now)
    after(settled, 31)
    await settled.settle()
    moved = settled.stages()
    settled.workloads.bring_back(lost, settled.now)
    await settled.settle()
    assert settled.stages() == moved
    assert lost in settled.model()["status"]["plan"]["spares"]


async def test_case_30_without_a_spare_it_says_what_is_missing_and_siblings_stay(tight):
    await tight.settle()
    before = tight.stages()
    assert len(before) == 2
    lost = before[1][1]
    tight.workloads.lose(lost, tight.now)
    after(tight, 31)
    await tight.settle()
    assert tight.stages() == before
    degraded = tight.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NoSpareNode")
    assert "stage 1" in degraded["message"]
    assert "GiB" in degraded["message"]
    assert tight.condition("Planned")["status"] == "False"
    assert tight.condition("Ready")["status"] == "False"


async def test_a_new_node_makes_good_what_was_missing(tight, make_node):
    await tight.settle()
    before = tight.stages()
    tight.workloads.lose(before[1][1], tight.now)
    after(tight, 31)
    await tight.settle()
    tight.cluster.put(make_node("pc-09", "12Gi"))
    await tight.settle()
    assert tight.stages()[0] == before[0]
    assert tight.stages()[1][1] == "pc-09"
    assert tight.condition("Ready")["status"] == "True"


async def test_a_deleted_node_counts_as_lost_at_once(settled):
    before = settled.stages()
    settled.cluster.remove(Ref(NODE, "", before[0][1]))
    await settled.settle()
    assert settled.stages()[0][1] != before[0][1]
    assert settled.stages()[1] == before[1]


async def test_cordoning_moves_nothing(settled):
    before = settled.stages()
    ref = Ref(NODE, "", before[0][1])
    settled.cluster.put({**settled.cluster.objects[ref], "spec": {"unschedulable": True}})
    await settled.settle()
    assert settled.stages() == before
    assert settled.condition("Ready")["status"] == "True"


async def test_case_110_a_label_that_is_taken_away_moves_the_stage(settled):
    before = settled.stages()
    ref = Ref(NODE, "", before[0][1])
    node = settled.cluster.objects[ref]
    settled.cluster.put({**node, "metadata": {**node["metadata"], "labels": {}}})
    await settled.settle()
    assert settled.stages()[0][1] != before[0][1]
    assert settled.condition("Ready")["status"] == "True"


async def test_case_110_without_labelled_nodes_the_reason_says_so(make_office, make_node, make_model):
    plain = make_node("pc-01", "28Gi")
    plain["metadata"]["labels"] = {}
    office = make_office(plain)
    office.cluster.put(make_model())
    await office.settle()
    planned = office.condition("Planned")
    assert (planned["status"], planned["reason"]) == ("False", "DoesNotFit")
    assert "pc-01 has no label shoal.dev/platform=lunar-lake" in planned["message"]


async def test_case_8_a_new_node_moves_nothing(settled, make_node):
    before = settled.stages()
    settled.cluster.put(make_node("pc-00", "60Gi"))
    await settled.settle()
    assert settled.stages() == before
    assert "pc-00" in settled.model()["status"]["plan"]["spares"]


async def test_a_device_plugin_that_restarts_moves_nothing(settled):
    before = settled.stages()
    ref = Ref(NODE, "", before[0][1])
    node = settled.cluster.objects[ref]
    gone = {key: value for key, value in node["status"]["allocatable"].items() if not key.startswith("gpu")}
    settled.cluster.put({**node, "status": {**node["status"], "allocatable": gone}})
    await settled.settle()
    assert settled.stages() == before
    deployment = next(obj for obj in settled.cluster.of_kind(DEPLOYMENT) if "-s0-" in obj["metadata"]["name"])
    requests = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert requests["gpu.intel.com/xe"] == "1"


async def test_another_cut_is_planned_anew(settled):
    settled.apply(stages={"count": 3})
    await settled.settle()
    assert len(settled.stages()) == 3
    assert settled.condition("Ready")["status"] == "True"


async def test_more_replicas_leave_the_first_pipeline_alone(settled):
    before = settled.stages()
    settled.apply(stages={"count": 2}, replicas=2)
    await settled.settle()
    assert len(settled.stages()) == 4
    assert set(before) <= set(settled.stages())
    assert settled.model()["status"]["readyReplicas"] == 2
    nodes = [node for _, node, _ in settled.stages()]
    assert len(set(nodes)) == 4
    settled.apply(stages={"count": 2}, replicas=1)
    await settled.settle()
    assert settled.stages() == before
