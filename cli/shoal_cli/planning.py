"""From a ShardedModel and facts to a plan: what `shoal plan` shows and `shoal run` runs."""

from __future__ import annotations

from shoal.plan import make_plan
from shoal.plan.devices import KvElement
from shoal.plan.facts import ManualRange, NodeFacts, PlanSpec, split_machine
from shoal.resource.bounds import quantity_bytes
from shoal.resource.nodes import NodeEntry, NodesFile
from shoal.resource.serving import KvPrecision
from shoal.resource.sharded_model import ExecutionMode, ShardedModel
from shoal_cli.local.machine import Machine

__all__ = ["make_plan", "nodes_of_file", "nodes_of_machine", "plan_spec"]

LOCAL_NODE = "local"


def plan_spec(model: ShardedModel) -> PlanSpec:
    """What the ShardedModel asks of the planner."""
    spec = model.spec
    kv = spec.scheduler.kv_precision
    exact = spec.execution.mode is ExecutionMode.EXACT
    auto = KvElement.F32 if exact else None
    return PlanSpec(
        devices=spec.devices,
        replicas=spec.replicas,
        stage_count=spec.stages.count,
        manual=tuple(
            ManualRange(stage.layers.first, stage.layers.last, stage.node, stage.device) for stage in spec.stages.manual
        ),
        node_selector=spec.placement.node_selector,
        node_limits={limit.node: quantity_bytes(limit.memory) for limit in spec.placement.node_limits},
        max_memory_fraction=spec.placement.max_memory_fraction,
        spare_nodes=spec.placement.spare_pods,
        streams=spec.scheduler.streams,
        max_context=spec.scheduler.max_context,
        kv=auto if kv is KvPrecision.AUTO else KvElement(kv.value),
    )


def nodes_of_file(file: NodesFile) -> list[NodeFacts]:
    """The PCs of a nodes file."""
    return [_node(entry) for entry in file.nodes]


def nodes_of_machine(machine: Machine, parts: int) -> tuple[NodeFacts, ...]:
    """This machine as `parts` nodes, which share its memory and its speed."""
    whole = NodeFacts(
        name=LOCAL_NODE,
        devices=machine.devices,
        memory_total=machine.memory_total,
        memory_allocatable=machine.memory_total,
        memory_free=machine.memory_free,
        link_ms=0.1,
    )
    return split_machine(whole, parts)


def _node(entry: NodeEntry) -> NodeFacts:
    total = quantity_bytes(entry.memory.total)
    return NodeFacts(
        name=entry.name,
        devices=entry.devices,
        memory_total=total,
        memory_allocatable=total,
        memory_free=quantity_bytes(entry.memory.free),
        memory_cap=None if entry.max_memory is None else quantity_bytes(entry.max_memory),
        speeds=entry.speed,
        link_ms=entry.link_ms,
        labels=entry.labels,
    )
