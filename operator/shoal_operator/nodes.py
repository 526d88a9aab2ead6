"""Node and Pod objects -> what the planner is told of each node. Pure.

Memory that a stage may take is what the node offers to pods, less what pods on it ask for, less what the plans of
other ShardedModels have taken. Stage pods themselves do not count: their plans do, from the moment they are made, so
that two models planned one after the other never want the same bytes. The GPU's memory is the pod's memory (device
plugins account none), so this sum is the only guard. Devices are discovered from what the node says it can allocate,
less those that a doctor refused on it; its annotations also say how fast devices and links were measured to be.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from shoal.node_use import NodeUse, use_of
from shoal.plan.devices import PROFILES
from shoal.plan.document import Device, Plan
from shoal.plan.facts import NodeFacts
from shoal.plan.node_annotations import NodeFindings, from_annotations
from shoal.resource import NodesFile, Toleration
from shoal.resource.bounds import quantity_bytes
from shoal_operator import names

RESOURCES: Final[Mapping[Device, tuple[str, ...]]] = {
    Device.GPU: ("gpu.intel.com/xe", "gpu.intel.com/i915"),
    Device.NPU: ("npu.intel.com/accel",),
}
PLATFORM_LABEL: Final = "shoal.dev/platform"
ENDED: Final = ("Succeeded", "Failed")
LONG_AGO: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: what the planner needs, and whether a stage may come to it or stay on it; `use` None: it has no agent."""

    facts: NodeFacts
    ready: bool = True
    changed: datetime.datetime = LONG_AGO
    cordoned: bool = False
    taints: tuple[Mapping[str, Any], ...] = ()
    resources: Mapping[Device, str] = field(default_factory=dict)
    use: NodeUse | None = None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.facts.name

    def lost_for(self, now: datetime.datetime) -> float:
        """Seconds that it has not been Ready; 0 while it is."""
        return 0.0 if self.ready else max(0.0, (now - self.changed).total_seconds())


def view_nodes(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], others: Iterable[Plan]
) -> tuple[NodeView, ...]:
    """All nodes by name. `others` are the plans of other ShardedModels."""
    memory: dict[str, int] = defaultdict(int)
    devices: dict[tuple[str, str], int] = defaultdict(int)
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ENDED or _is_stage(pod):
            continue
        memory[node] += pod_request(pod, "memory")
        for resource in (each for known in RESOURCES.values() for each in known):
            devices[node, resource] += pod_request(pod, resource)
    taken: dict[tuple[str, Device], int] = defaultdict(int)
    for plan in others:
        for stage in plan.everywhere:
            memory[stage.node] += stage.memory.total
            taken[stage.node, stage.device] += 1
    views = [_view(node, memory, devices, taken) for node in nodes]
    return tuple(sorted(views, key=lambda view: view.name))


def nodes_of_file(file: NodesFile, others: Iterable[Plan]) -> tuple[NodeView, ...]:
    """Nodes as an administrator listed them, for an operator that may not read Node objects."""
    taken: dict[str, int] = defaultdict(int)
    for plan in others:
        for stage in plan.everywhere:
            taken[stage.node] += stage.memory.total
    views = []
    for entry in file.nodes:
        free = max(0, quantity_bytes(entry.memory.free) - taken[entry.name])
        facts = NodeFacts(
            name=entry.name,
            devices=entry.devices,
            memory_total=quantity_bytes(entry.memory.total),
            memory_allocatable=quantity_bytes(entry.memory.total),
            memory_free=free,
            memory_cap=None if entry.max_memory is None else quantity_bytes(entry.max_memory),
            speeds=dict(entry.speed),
            link_ms=entry.link_ms,
            # Who lists a PC means it to serve: the label by which Node objects are chosen is not asked for as well.
            labels={PLATFORM_LABEL: "", **entry.labels},
        )
        views.append(NodeView(facts))
    return tuple(sorted(views, key=lambda view: view.name))


def refusal(view: NodeView, selector: Mapping[str, str], tolerations: Sequence[Toleration]) -> str | None:
    """Why no stage may come to the node, in words; None when one may."""
    labels = view.facts.labels
    if selector:
        missing = next((f"{key}={value}" for key, value in selector.items() if labels.get(key) != value), None)
        if missing:
            return f"{view.name} has no label {missing}"
    elif PLATFORM_LABEL not in labels:
        return f"{view.name} has no label {PLATFORM_LABEL}"
    if not view.ready:
        return f"{view.name} is not Ready"
    if view.cordoned:
        return f"{view.name} is cordoned"
    taint = next((taint for taint in view.taints if not _tolerated(taint, tolerations)), None)
    return None if taint is None else f"{view.name} has the taint {taint.get('key')}, which is not tolerated"


def selected(view: NodeView, selector: Mapping[str, str]) -> bool:
    """Whether the node's labels say that it may hold stages."""
    labels = view.facts.labels
    return all(labels.get(key) == value for key, value in selector.items()) if selector else PLATFORM_LABEL in labels


def pod_request(pod: Mapping[str, Any], resource: str) -> int:
    """What the scheduler reserves for a pod: containers and sidecars together, or the largest init container."""
    spec = pod["spec"]

    def asked(container: Mapping[str, Any]) -> int:
        return amount(container.get("resources", {}).get("requests", {}).get(resource, 0))

    running = sum(asked(container) for container in spec.get("containers", ()))
    largest = 0
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy") == "Always":
            running += asked(container)
        else:
            largest = max(largest, asked(container))
    return max(running, largest) + amount(spec.get("overhead", {}).get(resource, 0))


def amount(value: int | str) -> int:
    """A quantity as the API server writes it, in whole units; 0 for what cannot be read."""
    try:
        return quantity_bytes(value)
    except ValueError:
        try:
            return int(Decimal(str(value)))
        except InvalidOperation:
            return 0


def slim_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a pod of somebody else: where it is and what it asks for."""
    metadata, spec = pod["metadata"], pod.get("spec", {})
    containers = {
        kind: [
            {
                "resources": {"requests": each.get("resources", {}).get("requests", {})},
                **({"restartPolicy": each["restartPolicy"]} if "restartPolicy" in each else {}),
            }
            for each in spec.get(kind, ())
        ]
        for kind in ("containers", "initContainers")
    }
    kept = ("name", "namespace", "uid", "resourceVersion", "labels")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {**{key: spec[key] for key in ("nodeName", "overhead") if key in spec}, **containers},
        "status": {"phase": pod.get("status", {}).get("phase")},
    }


def _view(
    node: Mapping[str, Any],
    memory: Mapping[str, int],
    devices: Mapping[tuple[str, str], int],
    taken: Mapping[tuple[str, Device], int],
) -> NodeView:
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    name = metadata["name"]
    allocatable = status.get("allocatable", {})
    ready = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), None)
    found = from_annotations(metadata.get("annotations") or {})
    resources: dict[Device, str] = {}
    for device, known in RESOURCES.items():
        for resource in known if device not in found.refused else ():
            left = (
                amount(allocatable.get(resource, 0)) - devices.get((name, resource), 0) - taken.get((name, device), 0)
            )
            if left > 0:
                resources.setdefault(device, resource)
    total = amount(allocatable.get("memory", 0))
    return NodeView(
        facts=NodeFacts(
            name=name,
            devices=(*resources, *({Device.CPU} - found.refused)),
            memory_total=amount(status.get("capacity", {}).get("memory", 0)),
            memory_allocatable=total,
            memory_free=max(0, total - memory.get(name, 0)),
            **_measured(found),
            labels=dict(metadata.get("labels", {})),
        ),
        ready=ready is not None and ready["status"] == "True",
        changed=timestamp(ready.get("lastTransitionTime")) if ready else LONG_AGO,
        cordoned=bool(spec.get("unschedulable")),
        taints=tuple(taint for taint in spec.get("taints", ()) if _keeps_pods_off(taint)),
        resources=resources,
        use=use_of(status.get("conditions", ())),
    )


def _measured(found: NodeFindings) -> dict[str, Any]:
    """What a doctor measured: speeds relative to the assumed ones, as the planner wants them."""
    speeds = {device: value * 1e9 / PROFILES[device].bytes_per_second for device, value in found.gbps.items()}
    link = {} if found.link_ms is None else {"link_ms": found.link_ms}
    return {"speeds": speeds, "link_mbps": found.link_mbps, **link}


def with_cap(view: NodeView, cap: int) -> NodeView:
    """The node with a lower limit for stages."""
    return replace(view, facts=replace(view.facts, memory_cap=cap))


def timestamp(text: str | None) -> datetime.datetime:
    """A time as the API server writes it; long ago when there is none."""
    return datetime.datetime.fromisoformat(text) if text else LONG_AGO


def _is_stage(pod: Mapping[str, Any]) -> bool:
    labels = pod["metadata"].get("labels", {})
    return labels.get(names.ROLE_LABEL) == names.STAGE and names.MODEL_LABEL in labels


def _keeps_pods_off(taint: Mapping[str, Any]) -> bool:
    # What Kubernetes itself sets for a node that is not Ready or cordoned is judged by those facts.
    return taint.get("effect") in ("NoSchedule", "NoExecute") and not str(taint.get("key", "")).startswith(
        "node.kubernetes.io/"
    )


def _tolerated(taint: Mapping[str, Any], tolerations: Sequence[Toleration]) -> bool:
    return any(
        (each.effect is None or each.effect == taint.get("effect"))
        and (each.key is None or each.key == taint.get("key"))
        and (each.operator == "Exists" or (each.value or "") == taint.get("value", ""))
        for each in tolerations
    )
