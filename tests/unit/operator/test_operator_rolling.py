"""With several pipelines a change goes through them one at a time; one that does not serve holds nobody up for long."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shoal.plan.facts_json import facts_to_json
from shoal_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NODE, Ref


@pytest.fixture
async def settled(make_office, make_node):
    """Three pipelines of two stages on six PCs: no PC is free."""
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 7)))
    office.apply(stages={"count": 2}, replicas=3)
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
    return office


def images(office) -> list[set[str]]:
    """The images of each pipeline's stages, of those Deployments that the plan names."""
    plan = json.loads(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])
    found = []
    for pipeline in plan["pipelines"]:
        names = [stage["address"].partition(".")[0] for stage in pipeline["stages"]]
        pods = [office.cluster.objects[Ref(DEPLOYMENT, "ai", name)]["spec"]["template"]["spec"] for name in names]
        found.append({pod["containers"][0]["image"] for pod in pods})
    return found


def addresses(office) -> list[list[str]]:
    """Of each pipeline's stages, as the router reads them."""
    plan = json.loads(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])
    return [[stage["address"] for stage in pipeline["stages"]] for pipeline in plan["pipelines"]]


def change(office, image: str = "stage:2", **spec) -> None:
    office.apply(stages={"count": 2}, replicas=3, image={"stage": image}, **spec)


async def test_the_router_is_told_of_every_pipeline_and_those_that_stay_keep_their_place(settled):
    three = addresses(settled)
    assert len({address for pipeline in three for address in pipeline if address}) == 6
    for replicas in (2, 3):
        settled.apply(stages={"count": 2}, replicas=replicas)
        await settled.settle()
        assert [len(pipeline) for pipeline in addresses(settled)] == [2] * replicas
        assert addresses(settled)[:2] == three[:2]


async def test_one_pipeline_at_a_time_gets_another_image(settled):
    change(settled)
    seen = []
    for _ in range(12):
        await settled.reconcile()
        if images(settled) not in seen:
            seen.append(images(settled))
        # What the plan names is there, at any time, and nothing else is.
        assert len(settled.stages()) == 6
        await settled.reconcile()
        assert images(settled) == seen[-1], "the next one did not wait for this one"
        settled.workloads.step()
    old, new = {"stage:1"}, {"stage:2"}
    assert seen == [[new, old, old], [new, new, old], [new, new, new]]
    await settled.settle()
    assert settled.condition("Ready")["status"] == "True"


async def test_so_does_a_change_that_keeps_the_names(settled):
    def contexts() -> list[str]:
        return sorted(
            part.partition("=")[2]
            for obj in settled.cluster.of_kind(DEPLOYMENT)
            for part in obj["spec"]["template"]["spec"]["containers"][0]["command"]
            if part.startswith("--max-context=")
        )

    settled.apply(stages={"count": 2}, replicas=3, scheduler={"streams": 8, "maxContext": 4096})
    await settled.reconcile()
    assert contexts() == ["4096"] * 2 + ["8192"] * 4
    # The old pods are ready still: that is no reason to go on.
    await settled.reconcile()
    assert contexts() == ["4096"] * 2 + ["8192"] * 4
    settled.workloads.step()
    await settled.settle()
    assert contexts() == ["4096"] * 6


async def test_case_94_a_version_that_never_becomes_ready_stops_there_and_can_be_replaced(settled):
    settled.workloads.unwell = lambda pod: (
        {"phase": "Pending"} if pod["spec"]["containers"][0]["image"] == "stage:broken" else None
    )
    change(settled, "stage:broken")
    await settled.settle()
    old = {"stage:1"}
    assert images(settled) == [{"stage:broken"}, old, old]
    assert settled.model()["status"]["readyReplicas"] == 2
    assert settled.condition("Degraded")["reason"] == "PipelineDown"
    change(settled, "stage:3")
    await settled.reconcile()
    # The one that is down is mended first, and at once.
    assert images(settled) == [{"stage:3"}, old, old]
    settled.workloads.step()
    await settled.settle()
    assert images(settled) == [{"stage:3"}] * 3


async def test_a_lost_node_in_the_middle_of_it_is_not_waited_for(settled, make_node):
    change(settled)
    await settled.reconcile()
    settled.cluster.put(make_node("pc-07", "14Gi"))
    plan = json.loads(settled.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])
    lost = plan["pipelines"][2]["stages"][0]["node"]
    settled.cluster.remove(Ref(NODE, "", lost))
    await settled.settle()
    assert images(settled) == [{"stage:2"}] * 3
    assert lost not in {node for _, node, _ in settled.stages()}
    assert settled.condition("Ready")["status"] == "True"


async def test_another_model_is_for_all_of_them_at_once(settled):
    """A router answers with one model: its stages never hold two."""
    settled.workloads.report = facts_to_json(replace(settled.facts, digest="b" * 64))
    settled.apply(stages={"count": 2}, replicas=3, model={"source": {"uri": "hf://org/other"}})
    for _ in range(6):
        await settled.reconcile()
        digests = {
            part
            for obj in settled.cluster.of_kind(DEPLOYMENT)
            if obj["metadata"]["labels"]["shoal.dev/role"] == "stage"
            for part in obj["spec"]["template"]["spec"]["containers"][0]["command"]
            if part.startswith("--model=")
        }
        assert len(digests) == 1
        settled.workloads.step()
    assert "b" * 64 in digests.pop()
