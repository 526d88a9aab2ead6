"""A pipeline whose lost stage finds no place gives its nodes back, where the user asks for it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from shoal_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, NODE, Ref

MakeOffice = Callable[..., Any]
SMALL = {"scheduler": {"streams": 2, "maxContext": 2048}}
POLICY = {"recovery": {"replanAfterSeconds": 30, "freeAfterSeconds": 600}}


def after(office: Any, seconds: float) -> None:
    office.now += datetime.timedelta(seconds=seconds)


@pytest.fixture
async def tight(make_office: MakeOffice, make_node: MakeOffice, make_model: MakeOffice) -> Any:
    """Two PCs that hold the model only together, and it serves."""
    office = make_office(make_node("pc-01", "10Gi"), make_node("pc-02", "10Gi"))
    office.cluster.put(make_model(**SMALL, **POLICY))
    await office.settle()
    assert len(office.stages()) == 2
    return office


async def lose(office: Any, seconds: float) -> Any:
    """The node of the second stage is gone for so long."""
    lost = office.stages()[1][1]
    office.workloads.lose(lost, office.now)
    after(office, seconds)
    await office.settle()
    return lost


async def test_case_30_siblings_stay_until_the_time_and_then_free_their_nodes(tight):
    before = tight.stages()
    lost = tight.stages()[1][1]
    tight.workloads.lose(lost, tight.now)
    after(tight, 599)
    await tight.settle()
    assert tight.stages() == before
    assert tight.condition("Degraded")["reason"] == "NoSpareNode"
    outcome = await tight.reconcile()
    assert outcome.look_again == pytest.approx(1.5)
    after(tight, 1.5)
    outcome = await tight.settle()
    assert tight.stages() == []
    assert "llama-8b-plan" not in tight.names(CONFIG_MAP)
    degraded, ready = tight.condition("Degraded"), tight.condition("Ready")
    assert (degraded["status"], degraded["reason"]) == ("True", "DoesNotFit")
    assert "GiB" in degraded["message"]
    assert lost in degraded["message"]
    assert (ready["status"], ready["reason"]) == ("False", "DoesNotFit")
    said = [event["message"] for event in tight.cluster.of_kind(EVENT)]
    assert any("gave its nodes back" in each and "recovery.freeAfterSeconds" in each for each in said)
    assert outcome.wants_room


async def test_what_is_compiled_stays_and_the_pipeline_comes_back_with_the_node(tight):
    before = tight.stages()
    lost = await lose(tight, 601)
    assert "llama-8b-facts" in tight.names(CONFIG_MAP)
    assert "llama-8b-store" in tight.names(DEPLOYMENT)
    tight.workloads.bring_back(lost, tight.now)
    await tight.settle()
    assert tight.stages() == before
    assert tight.condition("Ready")["status"] == "True"
    assert tight.condition("Degraded")["status"] == "False"


async def test_another_model_gets_the_nodes(tight, make_model):
    tight.cluster.put(make_model("other", **SMALL, stages={"count": 1}, devices=["CPU"]))
    await tight.settle("other")
    assert tight.condition("Planned", "other")["status"] == "False"
    await lose(tight, 601)
    await tight.settle("other")
    assert tight.condition("Ready", "other")["status"] == "True"


async def test_without_the_policy_nothing_is_given_back(make_office, make_node, make_model):
    office = make_office(make_node("pc-01", "10Gi"), make_node("pc-02", "10Gi"))
    office.cluster.put(make_model(**SMALL))
    await office.settle()
    before = office.stages()
    await lose(office, 7 * 24 * 3600)
    assert office.stages() == before


async def test_a_node_that_has_a_successor_frees_nobody(tight, make_node):
    tight.cluster.put(make_node("pc-03", "10Gi"))
    kept = tight.stages()[0]
    await lose(tight, 601)
    assert tight.stages()[0] == kept
    assert len(tight.stages()) == 2


async def test_a_node_that_was_deleted_is_not_waited_for(tight):
    tight.cluster.remove(Ref(NODE, "", tight.stages()[1][1]))
    await tight.settle()
    assert tight.stages() == []


async def test_only_the_pipeline_that_lacks_a_stage_gives_its_nodes_back(make_office, make_node, make_model):
    office = make_office(*(make_node(f"pc-0{number}", "10Gi") for number in range(1, 5)))
    office.cluster.put(make_model(**SMALL, **POLICY, replicas=2, stages={"count": 2}))
    await office.settle()
    names = set(office.names(DEPLOYMENT))
    first = [name for name, labels in labels_of(office).items() if labels.get("shoal.dev/pipeline") == "0"]
    second = [name for name, labels in labels_of(office).items() if labels.get("shoal.dev/pipeline") == "1"]
    assert len(first) == len(second) == 2
    lost = where(office, first[1])
    templates = {name: template(office, name) for name in second}
    office.workloads.lose(lost, office.now)
    after(office, 601)
    await office.settle()
    assert names - set(office.names(DEPLOYMENT)) == set(first)
    # The other one is the first now; nothing of its pods changed by that.
    assert {labels_of(office)[name]["shoal.dev/pipeline"] for name in second} == {"0"}
    assert {name: template(office, name) for name in second} == templates
    assert office.condition("Degraded")["reason"] == "NoSpareNode"
    office.workloads.bring_back(lost, office.now)
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
    assert len(office.stages()) == 4


def labels_of(office: Any) -> dict[str, dict[str, str]]:
    return {obj["metadata"]["name"]: obj["metadata"]["labels"] for obj in office.cluster.of_kind(DEPLOYMENT)}


def template(office: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = office.cluster.objects[Ref(DEPLOYMENT, "ai", name)]["spec"]["template"]
    return found


def where(office: Any, name: str) -> str:
    terms = template(office, name)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
