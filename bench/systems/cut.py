"""Where a model is cut for equal nodes: as the planner does it, or by manual ranges."""

from __future__ import annotations

from shoal.manifest import Manifest
from shoal.plan import Device, ManualRange, ModelFacts, NodeFacts, PlanSpec, make_plan

_PLENTY = 1 << 40


def equal_nodes(count: int) -> list[NodeFacts]:
    """Nodes that are alike, with memory to spare."""
    return [
        NodeFacts(
            name=f"node-{index}",
            devices=(Device.CPU,),
            memory_total=_PLENTY,
            memory_allocatable=_PLENTY,
            memory_free=_PLENTY,
        )
        for index in range(count)
    ]


def cut_blocks(manifest: Manifest, stages: int, layers: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    """Half-open ranges of blocks, one a stage, for nodes that are alike and have memory to spare.

    `layers` are the layers of each stage; without them the planner decides.
    """
    starts = [sum(layers[:index]) for index in range(len(layers))]
    manual = tuple(ManualRange(start, start + count - 1) for start, count in zip(starts, layers, strict=True))
    spec = PlanSpec(devices=(Device.CPU,), stage_count=None if manual else stages, manual=manual, streams=1)
    plan = make_plan(ModelFacts.of_manifest(manifest), equal_nodes(stages), spec)
    return [(stage.block_start, stage.block_end) for stage in plan.pipelines[0].stages]


def even_steps(layers: int, head_layers: int) -> tuple[int, int]:
    """Layers of two stages whose single-token steps take as long when the head takes as long as `head_layers`."""
    first = (layers + head_layers) // 2
    return first, layers - first
