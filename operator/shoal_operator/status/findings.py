"""From what was observed and decided to the conditions. Pure; each function answers for one condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shoal.plan.document import Plan
from shoal.resource.status import ConditionType, MeasuredStatus
from shoal_operator.desired.stage import PlacedStage
from shoal_operator.nodes import NodeView
from shoal_operator.status.conditions import Finding, finding, with_ready
from shoal_operator.status.pods import Trouble, is_ready, is_started, short, trouble_of

SUMS: Final = 4000
"""Characters for the sums of every node: whoever adds memory or nodes needs all of them."""


@dataclass(frozen=True, slots=True)
class StageState:
    """A placed stage with its pod and its Deployment, as far as they exist. `gone`: its router says so."""

    placed: PlacedStage
    pod: Mapping[str, Any] | None
    deployment: Mapping[str, Any] | None
    node: NodeView | None
    gone: bool = False

    @property
    def ready(self) -> bool:
        """Whether it can run a token: its pod says so, its node is there, and the router hears it."""
        there = self.pod is not None and is_ready(self.pod) and (self.node is None or self.node.ready)
        return there and not self.gone

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"stage {self.placed.stage.index} on {self.placed.stage.node}"

    @property
    def trouble(self) -> Trouble | None:
        """Why it is not ready; None when it is."""
        if self.ready:
            return None
        if self.node is not None and not self.node.ready:
            return Trouble("NodeLost", f"{self.title}: the node is not Ready")
        if self.pod is None and self.deployment is not None:
            refused = _refused(self.deployment)
            if refused:
                return Trouble("PodRefused", short(f"{self.title}: {refused}"))
        found = trouble_of(self.pod, self.title)
        if found is None:
            return Trouble("Unreachable", f"{self.title}: the router does not hear it, though its pod is ready")
        return self._killed_for_memory(found) if found.reason == "OOMKilled" else found

    def _killed_for_memory(self, found: Trouble) -> Trouble:
        """With the amount that was too little, and with what asks for less."""
        total = self.placed.stage.memory.total
        remedy = "lower scheduler.streams or maxContext, or cut into more stages"
        return replace(found, message=short(f"{found.message} at its limit of {total >> 20} MiB: {remedy}"))


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the conditions speak about."""

    replicas: int
    model_known: bool
    model_current: bool
    model_trouble: Trouble | None
    plan: Plan | None
    plan_problem: str
    missing: tuple[str, ...]
    moved: tuple[str, ...]
    stages: tuple[StageState, ...]
    standbys: tuple[StageState, ...]
    short_of: str
    router: Mapping[str, Any] | None
    router_deployment: Mapping[str, Any] | None
    router_needs: str = ""
    draft: Trouble | None = None
    leaving: tuple[str, ...] = ()
    staying: tuple[str, ...] = ()
    measured: MeasuredStatus | None = None


def findings_of(situation: Situation) -> tuple[Finding, ...]:
    """All conditions."""
    summed = (
        model_available(situation),
        planned(situation),
        stages_ready(situation),
        router_ready(situation),
        chain_healthy(situation),
    )
    return (*with_ready(summed), degraded(situation), progressing(situation))


def planned(situation: Situation) -> Finding:
    """Whether there is a plan for the spec as it is."""
    kind = ConditionType.PLANNED
    if situation.plan_problem:
        return finding(kind, False, "DoesNotFit", short(situation.plan_problem, SUMS))
    if not situation.model_known:
        return finding(kind, None, "ModelUnknown", "the model's sizes are not known yet")
    if situation.plan is None:
        return finding(kind, None, "Pending", "no plan was made yet")
    if situation.missing and not _whole(situation):
        return finding(kind, False, "NodeLost", short("; ".join(situation.missing), SUMS))
    return finding(kind, True, "Planned", summary(situation.plan))


def model_available(situation: Situation) -> Finding:
    """Whether a compiled model is there. While another one is being made, the last one serves."""
    kind = ConditionType.MODEL_AVAILABLE
    trouble = situation.model_trouble
    if situation.model_current:
        return finding(kind, True, "Available", "the model is compiled")
    if situation.model_known:
        why = f": {trouble.message}" if trouble else ""
        return finding(kind, True, "PreviousModel", f"the last model serves until the new one is there{why}")
    if trouble is None:
        return finding(kind, False, "Compiling", "the model is being read")
    return finding(kind, False, trouble.reason, trouble.message)


def stages_ready(situation: Situation) -> Finding:
    """Whether every planned stage can run a token; else the first that cannot says why, real trouble before waiting."""
    kind = ConditionType.STAGES_READY
    if situation.replicas == 0:
        return finding(kind, False, "ScaledToZero", "spec.replicas is 0")
    if not situation.stages:
        return finding(kind, False, "NoStages", "there are no stages yet")
    troubles = [state.trouble for state in situation.stages]
    found = [trouble for trouble in troubles if trouble is not None]
    total = len(situation.stages)
    if not found:
        return finding(kind, True, "AllReady", f"{total}/{total} stages are ready")
    first = min(found, key=lambda trouble: trouble.waiting)
    return finding(kind, False, first.reason, f"{total - len(found)}/{total} stages are ready; {first.message}")


def router_ready(situation: Situation) -> Finding:
    """Whether the router's process runs."""
    kind = ConditionType.ROUTER_READY
    pod = situation.router
    if situation.replicas == 0:
        return finding(kind, False, "ScaledToZero", "spec.replicas is 0")
    if situation.router_deployment is None:
        waits = "the draft model is there" if situation.draft is not None else "the stages are planned"
        return finding(kind, False, "NoRouter", f"the router starts when {waits}")
    if pod is not None and (is_ready(pod) or is_started(pod)) and not pod["metadata"].get("deletionTimestamp"):
        return finding(kind, True, "Running", "the router runs")
    refused = _refused(situation.router_deployment) if pod is None else ""
    trouble = Trouble("PodRefused", short(f"router: {refused}")) if refused else trouble_of(pod, "router")
    assert trouble is not None  # a pod that is ready was dealt with above
    if trouble.reason == "Starting" and situation.router_needs:
        # A pod that waits for a Secret says nothing of it; only its events do.
        return finding(kind, False, trouble.reason, f"{trouble.message}; it needs {situation.router_needs}")
    return finding(kind, False, trouble.reason, trouble.message)


def chain_healthy(situation: Situation) -> Finding:
    """Whether a token goes through all stages: the router's own readiness says so."""
    kind = ConditionType.CHAIN_HEALTHY
    if situation.router is None:
        return finding(kind, None, "NoRouter", "the router asks the chain, and it does not run yet")
    if is_ready(situation.router):
        return finding(kind, True, "TokensFlow", "a token went through all stages")
    return finding(kind, False, "ChainNotOpen", "the router has not sent a token through all stages")


def degraded(situation: Situation) -> Finding:
    """Whether something is lost that was there, or finds no place, and what it takes to make it good."""
    kind = ConditionType.DEGRADED
    if situation.missing:
        return finding(kind, True, "NoSpareNode", short("; ".join(situation.missing), SUMS))
    if situation.plan is None and situation.plan_problem and situation.model_current:
        return finding(kind, True, "DoesNotFit", short(situation.plan_problem, SUMS))
    lost = [state for state in situation.stages if state.node is not None and not state.node.ready]
    if lost:
        return finding(kind, True, "NodeLost", short(f"{lost[0].title}: the node is not Ready"))
    ready, whole = ready_pipelines(situation.stages), situation.replicas
    if 0 < ready < whole:
        return finding(kind, True, "PipelineDown", f"{ready} of {whole} pipelines serve")
    if situation.draft is not None and not situation.draft.waiting:
        return finding(kind, True, "DraftUnavailable", short(f"the draft model: {situation.draft.message}"))
    if situation.staying:
        return finding(kind, True, "NodeInUse", short("; ".join(situation.staying), SUMS))
    if situation.short_of:
        return finding(kind, True, "NoStandby", short(situation.short_of))
    return finding(kind, False, "AsPlanned")


def progressing(situation: Situation) -> Finding:
    """Whether the operator is on its way to something."""
    kind = ConditionType.PROGRESSING
    trouble = situation.model_trouble
    if not situation.model_current:
        waiting = trouble is None or trouble.waiting
        reason, message = (trouble.reason, trouble.message) if trouble else ("Compiling", "the model is being read")
        return finding(kind, waiting, reason, message)
    waiting_stage = next((state.trouble for state in situation.stages if state.trouble and state.trouble.waiting), None)
    if waiting_stage is not None:
        return finding(kind, True, waiting_stage.reason, waiting_stage.message)
    if situation.draft is not None and situation.draft.waiting:
        return finding(kind, True, situation.draft.reason, short(f"the draft model: {situation.draft.message}"))
    if situation.leaving:
        return finding(kind, True, "Yielding", short("; ".join(situation.leaving)))
    return finding(kind, False, "Settled")


def ready_pipelines(stages: Sequence[StageState]) -> int:
    """Pipelines of which every stage is ready."""
    pipelines = {state.placed.pipeline for state in stages}
    return sum(all(state.ready for state in stages if state.placed.pipeline == index) for index in pipelines)


def summary(plan: Plan) -> str:
    """One line: which node holds what; `|` between stages, `;` between pipelines."""
    return short(
        "; ".join(
            " | ".join(f"{stage.node}: {stage.describe_blocks(plan.layers)}" for stage in pipeline.stages)
            for pipeline in plan.pipelines
        )
    )


def _whole(situation: Situation) -> bool:
    """Whether what there is of the plan stands on nodes that are there."""
    return all(state.node is not None and state.node.ready for state in situation.stages) and bool(situation.stages)


def _refused(deployment: Mapping[str, Any]) -> str:
    """Why the API server lets no pod be made: a quota, an admission policy."""
    for condition in deployment.get("status", {}).get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return str(condition.get("message", ""))
    return ""
