"""Where the planner cuts a model for equal nodes: benchmarks measure the stages that users would get."""

from __future__ import annotations

from shoal.manifest import Manifest
from shoal.plan import Device, ModelFacts, NodeFacts, PlanSpec, make_plan

_PLENTY = 1 << 40


def planned_cut(manifest: Manifest, stages: int) -> list[tuple[int, int]]:
    """Half-open ranges of blocks, one a stage, for nodes that are alike and have memory to spare."""
    nodes = [
        NodeFacts(
            name=f"node-{index}",
            devices=(Device.CPU,),
            memory_total=_PLENTY,
            memory_allocatable=_PLENTY,
            memory_free=_PLENTY,
        )
        for index in range(stages)
    ]
    spec = PlanSpec(devices=(Device.CPU,), stage_count=stages, streams=1)
    plan = make_plan(ModelFacts.of_manifest(manifest), nodes, spec)
    return [(stage.block_start, stage.block_end) for stage in plan.pipelines[0].stages]
