"""The status as a whole. Nothing in it changes by itself: no ages, no rates, no counters."""

from __future__ import annotations

import datetime
from typing import Any, Final

from shoal.plan.document import Plan, StagePlan
from shoal.resource import ShardedModelStatus
from shoal.resource.status import PipelineStatus, PlanStatus, StageStatus
from shoal_operator import names
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.router import router_url
from shoal_operator.status.conditions import Finding, merged
from shoal_operator.status.findings import Situation, StageState, ready_pipelines, summary

LINES: Final = 32
LINE: Final = 1024


def status_of(
    intent: Intent, situation: Situation, findings: tuple[Finding, ...], digest: str, now: datetime.datetime
) -> dict[str, Any]:
    """The status of a ShardedModel as JSON has it."""
    metadata, before = intent.model.metadata, intent.model.status
    generation = metadata.generation or 0
    stages = situation.stages
    ready = sum(state.ready for state in stages)
    status = ShardedModelStatus(
        observed_generation=generation,
        conditions=merged(before.conditions if before else (), findings, generation, now),
        replicas=len({state.placed.pipeline for state in stages}),
        ready_replicas=ready_pipelines(stages),
        selector=",".join(f"{key}={value}" for key, value in sorted(names.selector(intent.name, names.STAGE).items())),
        stages=f"{ready}/{len(stages)}",
        devices=",".join(sorted({state.placed.stage.device.value for state in stages})),
        url=router_url(intent),
        model_digest=digest,
        plan=None if situation.plan is None else _plan(situation.plan, stages, situation.standbys),
        measured=situation.measured,
    )
    return status.model_dump(by_alias=True, mode="json", exclude_none=True)


def _plan(plan: Plan, stages: tuple[StageState, ...], standbys: tuple[StageState, ...]) -> PlanStatus:
    ready = {(state.placed.pipeline, state.placed.stage.index): state.ready for state in stages}
    slowest = max(pipeline.token_ms for pipeline in plan.pipelines)
    return PlanStatus(
        summary=summary(plan),
        pipelines=tuple(
            PipelineStatus(
                index=pipeline.index,
                stages=tuple(
                    _stage(plan, stage, ready.get((pipeline.index, stage.index), False)) for stage in pipeline.stages
                ),
            )
            for pipeline in plan.pipelines
        ),
        standbys=tuple(_stage(plan, state.placed.stage, state.ready) for state in standbys),
        spares=plan.spares[:256],
        reasons=tuple(reason[:LINE] for reason in plan.reasons[:LINES]),
        advice=tuple(advice[:LINE] for advice in plan.advice[:LINES]),
        tokens_per_second=int(1000 / slowest) if slowest > 0 else None,
    )


def _stage(plan: Plan, stage: StagePlan, ready: bool) -> StageStatus:
    return StageStatus(
        index=stage.index,
        node=stage.node,
        device=stage.device,
        layers=stage.describe_blocks(plan.layers)[:64],
        memory_bytes=stage.memory.total,
        ready=ready,
    )
