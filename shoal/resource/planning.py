"""From what people write to what the planner is told: a spec to a PlanSpec, a nodes file to NodeFacts."""

from __future__ import annotations

from shoal.plan.devices import KvElement
from shoal.plan.facts import ManualRange, NodeFacts, PlanSpec
from shoal.resource.bounds import quantity_bytes
from shoal.resource.nodes import NodesFile
from shoal.resource.serving import KvPrecision
from shoal.resource.sharded_model import ExecutionMode, ShardedModelSpec


def plan_spec_of(spec: ShardedModelSpec) -> PlanSpec:
    """What the spec wants of a plan. `replicas: 0` is planned as 1, so that scaling up again finds its plan checked."""
    stages, placement, scheduler = spec.stages, spec.placement, spec.scheduler
    return PlanSpec(
        devices=spec.devices,
        replicas=max(spec.replicas, 1),
        stage_count=stages.count,
        manual=tuple(
            ManualRange(first=stage.layers.first, last=stage.layers.last, node=stage.node, device=stage.device)
            for stage in stages.manual
        ),
        node_selector=placement.node_selector,
        node_limits={limit.node: quantity_bytes(limit.memory) for limit in placement.node_limits},
        max_memory_fraction=placement.max_memory_fraction,
        spare_nodes=placement.spare_pods,
        streams=scheduler.streams,
        max_context=scheduler.max_context,
        kv=kv_element_of(spec),
    )


def kv_element_of(spec: ShardedModelSpec) -> KvElement | None:
    """How keys and values are stored; None leaves it to the device."""
    if spec.execution.mode is ExecutionMode.EXACT:
        return KvElement.F32
    wanted = spec.scheduler.kv_precision
    return None if wanted is KvPrecision.AUTO else KvElement(wanted.value)


def node_facts_of(file: NodesFile) -> tuple[NodeFacts, ...]:
    """The nodes of a nodes file."""
    return tuple(
        NodeFacts(
            name=node.name,
            devices=node.devices,
            memory_total=quantity_bytes(node.memory.total),
            memory_allocatable=quantity_bytes(node.memory.total),
            memory_free=quantity_bytes(node.memory.free),
            memory_cap=None if node.max_memory is None else quantity_bytes(node.max_memory),
            speeds=node.speed,
            link_ms=node.link_ms,
            labels=node.labels,
        )
        for node in file.nodes
    )
