"""Which nodes may be given stages, which may keep theirs, and the plan that follows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from shoal.errors import ShoalError
from shoal.plan.document import Device, Plan, StagePlan
from shoal.plan.facts import ModelFacts
from shoal.plan.standby import missing_standbys, with_standbys
from shoal.plan.sticky import keep_plan
from shoal.resource.planning import plan_spec_of
from shoal_operator import names
from shoal_operator.cluster.kinds import Object
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.stage import PlacedStage
from shoal_operator.nodes import RESOURCES, NodeView, refusal, selected
from shoal_operator.reconcile.freeing import give_back
from shoal_operator.reconcile.manners import look_again_for_use, nodes_in_use, on_their_way, without_a_place
from shoal_operator.reconcile.observed import Observed, device_resource
from shoal_operator.reconcile.volumes import Terms, reaches
from shoal_operator.status.pods import is_ready

NAMED: int = 8


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan in force, what changed in it, and why it is not what was asked for.

    `problem` says why there is no plan for the spec as it is (then `plan` is the last one, or None); `missing` what
    the plan lacks, `short_of` what it lacks of standbys; `leaving` and `staying` are the stages on nodes in use that
    have found another place and that have not; `look_again` in how many seconds time alone will make a difference.
    """

    plan: Plan | None
    problem: str = ""
    moved: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    look_again: float | None = None
    short_of: str = ""
    leaving: tuple[str, ...] = ()
    staying: tuple[str, ...] = ()


def cut_of(intent: Intent) -> str:
    """Names the cut that the user asks for: another one is a reason to plan anew."""
    spec = intent.model.spec
    return names.digest_of([spec.stages.model_dump(mode="json"), [device.value for device in spec.devices]])[:16]


def plan_for(intent: Intent, facts: ModelFacts, observed: Observed, terms: Terms | None = None) -> Planned:
    """The plan to go on with, as little changed as nodes and spec allow; `terms` are those of the model's volume."""
    spec = intent.model.spec
    selector, after = spec.placement.node_selector, spec.recovery.replan_after_seconds
    in_use = nodes_in_use(observed.nodes, spec.placement, observed.now)
    open_to, refused = [], []
    for view in observed.nodes:
        why = refusal(view, selector, spec.placement.tolerations)
        if why is None and view.name in in_use:
            why = f"{view.name} is in use ({in_use[view.name]})"
        if why is None and not reaches(view, terms):
            why = f"{view.name} cannot mount the model's volume"
        if why is None:
            open_to.append(view.facts)
        else:
            refused.append(why)
    silent = _silent(observed)
    open_to = [facts for facts in open_to if facts.name not in silent]
    relieved = _relieved(intent, observed, {node.name for node in open_to}, in_use)
    staying = [
        # What a running stage uses it has, whatever the device plugin says just now.
        replace(view.facts, devices=tuple(Device))
        for view in observed.nodes
        if selected(view, selector)
        and view.lost_for(observed.now) < after
        and reaches(view, terms)
        and view.name not in relieved
    ]
    wanted = replace(plan_spec_of(spec), node_selector={})
    same_cut = not observed.cut or observed.cut == cut_of(intent)
    look_again = _look_again(observed, intent)
    if not open_to and observed.plan is None:
        return Planned(None, problem=_no_nodes(observed.nodes, refused), look_again=look_again)
    try:
        kept = keep_plan(observed.plan, facts, open_to, staying, wanted, same_cut=same_cut)
    except ShoalError as error:
        others = f" (not used: {'; '.join(refused[:NAMED])})" if refused else ""
        return Planned(observed.plan, problem=f"{error}{others}", look_again=look_again)
    left, freed = give_back(kept.plan, kept.missing, observed, spec.recovery.free_after_seconds)
    moved = (*kept.moved, *freed)
    if left is None:
        return Planned(None, problem="; ".join(kept.missing), moved=moved, look_again=look_again)
    before = observed.plan.standbys if observed.plan is not None else ()
    left_by = _being_left(intent, left, observed)
    free = [node for node in open_to if node.name not in left_by]
    # A standby computes nothing, but it takes memory: it goes from a PC in use as well.
    waiting = [node for node in staying if node.name not in in_use]
    plan = with_standbys(left, facts, free, wanted, previous=before, staying=waiting, leaving=in_use)
    return Planned(
        plan,
        moved=moved,
        missing=kept.missing,
        look_again=look_again,
        short_of=missing_standbys(plan, wanted, in_use),
        leaving=on_their_way(plan, in_use),
        staying=without_a_place(plan, in_use),
    )


def place(intent: Intent, plan: Plan, observed: Observed) -> tuple[PlacedStage, ...]:
    """The stages of a plan with their names and the resources that grant their devices."""
    return tuple(
        _placed(intent, plan, observed, pipeline.index, stage)
        for pipeline in plan.pipelines
        for stage in pipeline.stages
    )


def place_standbys(intent: Intent, plan: Plan, observed: Observed) -> tuple[PlacedStage, ...]:
    """Those that stand by, under the names that they keep when they take over."""
    return tuple(
        replace(_placed(intent, plan, observed, standby.pipeline, standby.stage), standby=True)
        for standby in plan.standbys
    )


def _placed(intent: Intent, plan: Plan, observed: Observed, pipeline: int, stage: StagePlan) -> PlacedStage:
    name = names.stage_name(intent.name, stage, plan.model_digest or "", intent.stage_image)
    resource = device_resource(observed.children, intent.namespace, name, RESOURCES.get(stage.device, ()))
    if not resource:
        view = next((view for view in observed.nodes if view.name == stage.node), None)
        resource = view.resources.get(stage.device, "") if view is not None else ""
    return PlacedStage(pipeline, stage, name, resource)


def _relieved(intent: Intent, observed: Observed, open_to: Collection[str], in_use: Collection[str]) -> set[str]:
    """Nodes that are not Ready, whose stage is gone by what the router says, or that are in use, and whose stage is
    loaded elsewhere: it moves there at once.

    What is lost is made good first: as long as a stage is lost, nothing moves for a person's sake.
    """
    if observed.plan is None or not observed.plan.standbys:
        return set()
    there = {view.name for view in observed.nodes if view.ready} - _silent(observed)
    loaded = [
        placed
        for placed in place_standbys(intent, observed.plan, observed)
        if placed.stage.node in there and _serves(observed.pod_of_stage(placed.name))
    ]
    blocks = {(placed.stage.block_start, placed.stage.block_end) for placed in loaded}
    serving = [(pipeline.index, stage) for pipeline in observed.plan.pipelines for stage in pipeline.stages]
    lost = [stage for _, stage in serving if stage.node not in there]
    if lost:
        return {stage.node for stage in lost if (stage.block_start, stage.block_end) in blocks}
    places = {(placed.pipeline, placed.stage.index) for placed in loaded if placed.stage.node in open_to}
    return {stage.node for pipeline, stage in serving if stage.node in in_use and (pipeline, stage.index) in places}


def _silent(observed: Observed) -> set[str]:
    """Nodes whose stage is gone, as the router says: Kubernetes may not know it for most of a minute."""
    if observed.plan is None:
        return set()
    stages = (stage for pipeline in observed.plan.pipelines for stage in pipeline.stages)
    return {stage.node for stage in stages if names.stage_of(stage.address) in observed.lost}


def _being_left(intent: Intent, plan: Plan, observed: Observed) -> set[str]:
    """Nodes with the pod of a stage that is not in the plan: as long as it is there, its node may be gone.

    A pod on a node without power ends when that node is back; until then nothing new is put there.
    """
    wanted = {each.name for each in (*place(intent, plan, observed), *place_standbys(intent, plan, observed))}
    return {
        pod["spec"].get("nodeName", "")
        for pod in observed.pods_of(names.STAGE)
        if pod["metadata"]["labels"].get(names.NAME_LABEL) not in wanted
    }


def _serves(pod: Object | None) -> bool:
    return pod is not None and is_ready(pod)


def _look_again(observed: Observed, intent: Intent) -> float | None:
    """When a node that holds a stage will have been gone for too long, or time changes which nodes are in use."""
    spec = intent.model.spec
    use = look_again_for_use(observed.nodes, spec.placement, observed.now)
    if observed.plan is None:
        return use
    held = {stage.node for pipeline in observed.plan.pipelines for stage in pipeline.stages}
    gone = [view.lost_for(observed.now) for view in observed.nodes if view.name in held and not view.ready]
    waits = [spec.recovery.replan_after_seconds, *filter(None, [spec.recovery.free_after_seconds])]
    left = [after - seconds for after in waits for seconds in gone]
    return min([seconds + 0.5 for seconds in left if seconds > 0] + [each for each in [use] if each], default=None)


def _no_nodes(views: Sequence[NodeView], refused: Sequence[str]) -> str:
    if not views:
        return "there are 0 nodes: nothing can be planned"
    more = f" and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
    return f"0 of {len(views)} nodes can hold a stage: {'; '.join(refused[:NAMED])}{more}"
