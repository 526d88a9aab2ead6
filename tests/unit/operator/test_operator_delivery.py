"""A changed plan is named on the router's pod, so that its kubelet brings it at once."""

from __future__ import annotations

import datetime
import json

from shoal_operator.cluster.kinds import CONFIG_MAP, POD, Ref
from shoal_operator.names import AGAIN_ANNOTATION, HASH_ANNOTATION, PLAN_ANNOTATION


def router_pods(office):
    return [pod for pod in office.cluster.of_kind(POD) if pod["metadata"]["labels"].get("shoal.dev/role") == "router"]


def plan_digest(office):
    plan = office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]
    return plan["metadata"]["annotations"][HASH_ANNOTATION]


async def test_the_routers_pod_names_the_plan_in_force(office):
    await office.settle()
    (pod,) = router_pods(office)
    assert pod["metadata"]["annotations"][PLAN_ANNOTATION] == plan_digest(office)
    first = plan_digest(office)
    office.workloads.lose(office.stages()[1][1], office.now)
    office.now += datetime.timedelta(seconds=31)
    await office.settle()
    (same,) = router_pods(office)
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert same["metadata"]["annotations"][PLAN_ANNOTATION] == plan_digest(office) != first


async def test_a_pod_that_ends_is_left_alone(office):
    await office.settle()
    (pod,) = router_pods(office)
    ending = office.cluster.objects[Ref(POD, "ai", pod["metadata"]["name"])]
    ending["metadata"] |= {"deletionTimestamp": "2026-11-29T12:00:00Z", "annotations": {}}
    office.cluster.put(ending)
    before = len(office.cluster.writes)
    await office.reconcile()
    assert [ref for _, ref in office.cluster.writes[before:] if ref.kind == POD] == []


async def test_a_router_that_does_not_follow_the_plan_is_named_it_again(office):
    """A kubelet may hear of the changed pod before it hears of the changed ConfigMap, and mount the old one."""
    said: set[str] = set()
    office.reconciler._lost = lambda _: frozenset(said)
    await office.settle()
    plan = json.loads(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])
    lost = plan["pipelines"][0]["stages"][1]
    office.workloads.lose(lost["node"], office.now)
    said.add(lost["address"])
    office.now += datetime.timedelta(seconds=31)
    outcome = await office.settle()
    assert outcome.look_again == 1.0

    def namings():
        (pod,) = router_pods(office)
        assert pod["metadata"]["annotations"][PLAN_ANNOTATION] == plan_digest(office)
        return pod["metadata"]["annotations"].get(AGAIN_ANNOTATION)

    async def after(seconds):
        office.now += datetime.timedelta(seconds=seconds)
        outcome = await office.settle()
        return namings(), outcome.look_again

    assert namings() is None
    first, look_again = await after(1)
    assert (first is not None, look_again) == (True, 2.0)
    assert await after(1) == (first, 1.0), "the longer it does not help, the rarer"
    second, look_again = await after(1)
    assert (second != first, look_again) == (True, 4.0)

    said.clear()  # It has read the plan: of the stage that was lost it knows nothing any more.
    assert (await after(100))[0] == second


async def test_a_stage_that_the_plan_names_may_be_lost_for_long(office):
    """Nobody stands by for it; the router has read the plan."""
    said: set[str] = set()
    office.reconciler._lost = lambda _: frozenset(said)
    await office.settle()
    plan = json.loads(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])
    said.add(plan["pipelines"][0]["stages"][1]["address"])
    for _ in range(3):
        office.now += datetime.timedelta(seconds=1)
        await office.settle()
    (pod,) = router_pods(office)
    assert AGAIN_ANNOTATION not in pod["metadata"]["annotations"]
