"""Whose turn it is when pods must change: with several pipelines one at a time, so that the others go on serving. Pure.

A change of image or settings concerns every stage. The pipelines that serve keep their Deployments, names and
addresses until their turn comes; one that does not serve loses nothing and is changed at once, so that a version that
never becomes ready holds up the others, and can itself be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.plan.document import PipelinePlan, Plan
from shoal.plan.facts import ModelFacts
from shoal_operator import names
from shoal_operator.cluster.kinds import DEPLOYMENT, Ref
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.stage import PlacedStage, stage_deployment
from shoal_operator.reconcile.observed import Observed
from shoal_operator.status.pods import is_ready

Pipelines = dict[int, tuple[PlacedStage, ...]]


def one_at_a_time(
    intent: Intent, facts: ModelFacts, plan: Plan, placed: Sequence[PlacedStage], observed: Observed
) -> tuple[PlacedStage, ...]:
    """The placed stages; those of pipelines that must wait are `held`, under the names that they have now."""
    wanted: Pipelines = {}
    for each in placed:
        wanted[each.pipeline] = (*wanted.get(each.pipeline, ()), each)
    if len(wanted) < 2:
        return tuple(placed)
    as_is = {number: _as_it_is(stages, plan, observed) for number, stages in wanted.items()}
    changing = [number for number, stages in wanted.items() if _differs(intent, facts, stages, observed)]
    waiting = [number for number in changing if as_is[number] and _serves(as_is[number], observed)]
    on_the_way = any(not _serves(stages, observed) for number, stages in wanted.items() if number not in waiting)
    held = waiting if on_the_way else waiting[1:]
    return tuple(stage for number, stages in wanted.items() for stage in (as_is[number] if number in held else stages))


def _as_it_is(stages: Sequence[PlacedStage], plan: Plan, observed: Observed) -> tuple[PlacedStage, ...]:
    """The stages under the names that the plan in force has; empty when that plan puts them elsewhere."""
    before = observed.plan
    if before is None or before.model_digest != plan.model_digest or stages[0].pipeline >= len(before.pipelines):
        return ()
    old: PipelinePlan = before.pipelines[stages[0].pipeline]
    if len(old.stages) != len(stages):
        return ()
    found = []
    for was, each in zip(old.stages, stages, strict=True):
        now = each.stage
        if (was.node, was.device) != (now.node, now.device) or was.block_end != now.block_end:
            return ()
        found.append(replace(each, name=names.stage_of(was.address), held=True))
    return tuple(found)


def _differs(intent: Intent, facts: ModelFacts, stages: Sequence[PlacedStage], observed: Observed) -> bool:
    """Whether a Deployment of the pipeline is missing, or is not as it should be."""
    for stage in stages:
        there = _deployment(stage, observed)
        desired = stage_deployment(intent, facts, stage)["metadata"]["annotations"][names.HASH_ANNOTATION]
        if there is None or there["metadata"].get("annotations", {}).get(names.HASH_ANNOTATION) != desired:
            return True
    return False


def _serves(stages: Sequence[PlacedStage], observed: Observed) -> bool:
    """Whether every stage runs as its Deployment says, and is ready."""
    for stage in stages:
        deployment, pod = _deployment(stage, observed), observed.pod_of_stage(stage.name)
        if deployment is None or pod is None or not is_ready(pod) or not _rolled_out(deployment):
            return False
    return True


def _rolled_out(deployment: Mapping[str, Any]) -> bool:
    """Whether the pod that is there is one of the newest template: an old one may be ready for a moment longer."""
    status = deployment.get("status", {})
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(current and status.get("updatedReplicas", 0) >= 1)


def _deployment(stage: PlacedStage, observed: Observed) -> Mapping[str, Any] | None:
    return next(
        (obj for ref, obj in observed.children.items() if ref.kind == DEPLOYMENT and ref.name == stage.name), None
    )


def held_refs(intent: Intent, placed: Sequence[PlacedStage]) -> set[Ref]:
    """The Deployments that are neither applied nor removed."""
    return {Ref(DEPLOYMENT, intent.namespace, each.name) for each in placed if each.held}
