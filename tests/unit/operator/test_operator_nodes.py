"""Node and Pod objects in, planner's facts out."""

from __future__ import annotations

import datetime

import pytest

from shoal.plan.document import Device, MemorySum, PipelinePlan, Plan, StagePlan
from shoal.resource import Toleration, parse_nodes
from shoal_operator.nodes import amount, nodes_of_file, pod_request, refusal, view_nodes

GIB = 1 << 30
SELECTOR = {"shoal.dev/platform": "lunar-lake"}


def pod(node: str, memory: str = "1Gi", phase: str = "Running", labels: dict[str, str] | None = None, **spec) -> dict:
    resources = {"resources": {"requests": {"memory": memory, **spec.pop("requests", {})}}}
    return {
        "metadata": {"name": "p", "namespace": "x", "labels": labels or {}},
        "spec": {"nodeName": node, "containers": [resources], **spec},
        "status": {"phase": phase},
    }


def plan_on(node: str, total: int, device: Device = Device.GPU) -> Plan:
    memory = MemorySum(weights=total, load_peak=0, kv=0, runtime=0)
    stage = StagePlan(index=0, node=node, device=device, block_start=0, block_end=4, memory=memory)
    return Plan(pipelines=(PipelinePlan(index=0, stages=(stage,)),))


def test_memory_is_what_other_pods_and_plans_leave(make_node):
    ended = pod("pc-1", "4Gi", phase="Succeeded")
    elsewhere = pod("pc-2", "4Gi")
    stage = pod("pc-1", "4Gi", labels={"shoal.dev/role": "stage", "shoal.dev/model": "m"})
    (view,) = view_nodes(
        [make_node("pc-1", "16Gi")], [pod("pc-1"), ended, elsewhere, stage], [plan_on("pc-1", 5 * GIB)]
    )
    assert view.facts.memory_allocatable == 16 * GIB
    assert view.facts.memory_free == 10 * GIB


def test_a_pod_counts_as_the_scheduler_counts_it():
    def container(memory: str, **more) -> dict:
        return {"resources": {"requests": {"memory": memory}}, **more}

    spec = {
        "containers": [container("1Gi"), container("1Gi")],
        "initContainers": [container("5Gi"), container("1Gi", restartPolicy="Always")],
        "overhead": {"memory": "1Gi"},
    }
    assert pod_request({"spec": spec}, "memory") == 6 * GIB
    spec["initContainers"][0] = container("1Gi")
    assert pod_request({"spec": spec}, "memory") == 4 * GIB


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [("gpu.intel.com/xe", "gpu.intel.com/xe"), ("gpu.intel.com/i915", "gpu.intel.com/i915"), ("", None)],
)
def test_devices_are_discovered(make_node, gpu, expected):
    (view,) = view_nodes([make_node("pc-1", gpu=gpu)], [], [])
    assert view.resources.get(Device.GPU) == expected
    assert (Device.GPU in view.facts.devices) == (expected is not None)
    assert Device.CPU in view.facts.devices


def test_a_device_that_somebody_uses_is_not_offered(make_node):
    node = make_node("pc-1")
    (by_pod,) = view_nodes([node], [pod("pc-1", requests={"gpu.intel.com/xe": "1"})], [])
    (by_plan,) = view_nodes([node], [], [plan_on("pc-1", 1)])
    assert Device.GPU not in by_pod.facts.devices
    assert Device.GPU not in by_plan.facts.devices
    assert Device.NPU in by_plan.facts.devices
    node["status"]["allocatable"]["gpu.intel.com/xe"] = "2"
    (shared,) = view_nodes([node], [], [plan_on("pc-1", 1)])
    assert Device.GPU in shared.facts.devices


def test_monitoring_resources_are_never_devices(make_node):
    node = make_node("pc-1", gpu="gpu.intel.com/xe_monitoring")
    (view,) = view_nodes([node], [], [])
    assert Device.GPU not in view.facts.devices


@pytest.mark.parametrize(
    ("change", "selector", "words"),
    [
        ({}, SELECTOR, None),
        ({}, {}, None),
        ({}, {"room": "12"}, "no label room=12"),
        ({"unlabelled": True}, {}, "no label shoal.dev/platform"),
        ({"ready": "False"}, {}, "is not Ready"),
        ({"ready": None}, {}, "is not Ready"),
        ({"unschedulable": True}, {}, "is cordoned"),
        ({"taints": [{"key": "office", "effect": "NoSchedule"}]}, {}, "taint office"),
        ({"taints": [{"key": "office", "effect": "PreferNoSchedule"}]}, {}, None),
        ({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}, {}, None),
    ],
)
def test_why_a_node_gets_no_stage(make_node, change, selector, words):
    node = make_node("pc-1", **{key: value for key, value in change.items() if key in ("unschedulable", "taints")})
    if change.get("unlabelled"):
        node["metadata"]["labels"] = {}
    if "ready" in change:
        node["status"]["conditions"] = (
            [{"type": "Ready", "status": change["ready"]}] if change["ready"] is not None else []
        )
    (view,) = view_nodes([node], [], [])
    why = refusal(view, selector, ())
    assert (why is None) if words is None else (words in why)


def test_a_tolerated_taint_is_no_reason(make_node):
    (view,) = view_nodes([make_node("pc-1", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}])], [], [])
    assert refusal(view, {}, (Toleration(key="a", value="b"),)) is None
    assert refusal(view, {}, (Toleration(key="a", operator="Exists"),)) is None
    assert refusal(view, {}, (Toleration(operator="Exists"),)) is None
    assert refusal(view, {}, (Toleration(key="a", value="c"),)) is not None
    assert refusal(view, {}, (Toleration(key="a", value="b", effect="NoExecute", toleration_seconds=1),)) is not None


def test_how_long_a_node_is_gone(make_node):
    node = make_node("pc-1")
    node["status"]["conditions"] = [
        {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-29T12:00:00Z"}
    ]
    (view,) = view_nodes([node], [], [])
    at = datetime.datetime(2026, 11, 29, 12, 0, 40, tzinfo=datetime.UTC)
    assert view.lost_for(at) == 40


def test_a_nodes_file_serves_where_nodes_cannot_be_read():
    text = "nodes: [{name: pc-1, memory: {total: 32Gi, free: 20Gi}, labels: {shoal.dev/platform: lunar-lake}}]"
    (view,) = nodes_of_file(parse_nodes(text), [plan_on("pc-1", 5 * GIB)])
    assert view.facts.memory_free == 15 * GIB
    assert refusal(view, {}, ()) is None


def test_a_pc_that_is_listed_needs_no_label_unless_the_model_asks_for_one():
    (view,) = nodes_of_file(parse_nodes("nodes: [{name: pc-1, memory: {total: 32Gi, free: 20Gi}}]"), [])
    assert refusal(view, {}, ()) is None
    wanted = {"shoal.dev/platform": "lunar-lake"}
    assert refusal(view, wanted, ()) == "pc-1 has no label shoal.dev/platform=lunar-lake"


@pytest.mark.parametrize(
    ("text", "value"),
    [("16Gi", 16 * GIB), ("1500m", 1), (7, 7), ("128974848", 128974848), ("129e6", 129000000), ("?", 0)],
)
def test_amounts_as_the_api_server_writes_them(text, value):
    assert amount(text) == value
