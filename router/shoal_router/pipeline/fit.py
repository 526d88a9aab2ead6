"""Whether stages that are ready make one pipeline, and what that pipeline can hold. Pure.

Stages of different models, or with a gap or an overlap between their blocks, would compute nonsense; stages with
different software compute numbers that differ a little, which breaks replay and exact mode. Both are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.wire.errors import DigestMismatch, StageNotReady, WrongPlace
from shoal.wire.messages import KvCapacity, StageDescription
from shoal_router.pipeline.plan_source import PlannedPipeline


def check_fit(planned: PlannedPipeline, found: Sequence[StageDescription]) -> KvCapacity:
    """The KV memory that every stage has. Raises DigestMismatch, WrongPlace or StageNotReady with the reason."""
    first = found[0]
    expected_digest = planned.model_digest or first.model_digest
    for plan, stage in zip(planned.stages.stages, found, strict=True):
        where = f"stage {plan.index} at {plan.address}"
        if stage.model_digest != expected_digest:
            raise DigestMismatch(
                f"{where} holds model {stage.model_digest[:12]}…, the pipeline serves {expected_digest[:12]}…: "
                "start it with the pipeline's model directory"
            )
        if (stage.block_start, stage.block_end) != (plan.block_start, plan.block_end):
            raise WrongPlace(
                f"{where} holds blocks {stage.block_start}:{stage.block_end}, "
                f"the plan gives it {plan.block_start}:{plan.block_end}"
            )
        _check_same(where, stage, first)
    last = found[-1]
    if last.block_end != last.blocks_in_model:
        raise WrongPlace(
            f"the plan ends at block {last.block_end}, the model has {last.blocks_in_model}: a stage is missing"
        )
    return _common_capacity(planned, found)


def _check_same(where: str, stage: StageDescription, first: StageDescription) -> None:
    if stage.exact != first.exact:
        raise WrongPlace(f"{where} has exact={stage.exact}, stage 0 has exact={first.exact}")
    for name in sorted(stage.versions.keys() | first.versions.keys()):
        here, there = stage.versions.get(name, "missing"), first.versions.get(name, "missing")
        if here != there:
            raise WrongPlace(f"{where} runs {name} {here}, stage 0 runs {there}: run the same on every node")


def _common_capacity(planned: PlannedPipeline, found: Sequence[StageDescription]) -> KvCapacity:
    capacities = []
    for plan, stage in zip(planned.stages.stages, found, strict=True):
        if stage.capacity is None:
            raise StageNotReady(f"stage {plan.index} at {plan.address} does not say what it can hold")
        capacities.append(stage.capacity)
    first = capacities[0]
    for plan, capacity in zip(planned.stages.stages, capacities, strict=True):
        if (capacity.block_size, capacity.shares_blocks) != (first.block_size, first.shares_blocks):
            raise WrongPlace(
                f"stage {plan.index} at {plan.address} keeps KV in {_kind(capacity)}, stage 0 in {_kind(first)}: "
                "run the same engine on every stage"
            )
    return KvCapacity(
        sequences=min(capacity.sequences for capacity in capacities),
        blocks=min(capacity.blocks for capacity in capacities),
        block_size=first.block_size,
        max_context=min(capacity.max_context for capacity in capacities),
        bytes=sum(capacity.bytes for capacity in capacities),
        shares_blocks=first.shares_blocks,
    )


def _kind(capacity: KvCapacity) -> str:
    return f"{'pages' if capacity.shares_blocks else 'slots'} of {capacity.block_size} tokens"


def next_epoch(found: Sequence[StageDescription], wall_seconds: float) -> int:
    """Higher than any epoch that a stage knows; and, by the clock, than those of stages that have forgotten theirs."""
    return max(max(stage.epoch for stage in found) + 1, int(wall_seconds))
