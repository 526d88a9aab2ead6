"""A changed plan is named on the router's pod, so that its kubelet brings it at once."""

from __future__ import annotations

import datetime

from shoal_operator.cluster.kinds import CONFIG_MAP, POD, Ref
from shoal_operator.names import HASH_ANNOTATION, PLAN_ANNOTATION


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
