"""keep_plan: the last plan, with as little changed as the nodes and the spec allow.

A stage that moves pulls, loads and compiles its blocks again, and every answer in progress waits for it. So nothing
moves unless it must: a pipeline whose nodes still hold it stays as it is; where a node is gone, only its stage goes to
a node that is free; pipelines are added on free nodes and taken away from the end. Only a cut that the spec no longer
allows, or a loss that no free node can make good, is a reason to plan anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from shoal.errors import PlanError
from shoal.plan.costs import Costs, Site, usable_sites
from shoal.plan.document import PipelinePlan, Plan, StagePlan
from shoal.plan.facts import ModelFacts, NodeFacts, PlanSpec
from shoal.plan.planner import make_plan
from shoal.plan.standby import layers_of, pinned, stage_on
from shoal.plan.words import count, memory, size


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan, what moved in it (empty: nothing), and what could not be made good (empty: everything is)."""

    plan: Plan
    moved: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def keep_plan(
    previous: Plan | None,
    model: ModelFacts,
    nodes: Sequence[NodeFacts],
    staying: Sequence[NodeFacts],
    spec: PlanSpec,
    *,
    same_cut: bool = True,
) -> Kept:
    """The plan to go on with.

    `nodes` may be given stages, `staying` (which may overlap) may keep those that they have, such as a node that was
    cordoned or has only just been lost. `same_cut` False says that the user asks for another cut. Raises PlanError
    when there is no previous plan to hold on to and none can be made.
    """
    if previous is None or not same_cut or not _allowed(previous, model, spec):
        return _fresh(previous, model, nodes, spec)
    return _Keeper(previous, model, nodes, staying, spec).keep()


def _fresh(previous: Plan | None, model: ModelFacts, nodes: Sequence[NodeFacts], spec: PlanSpec) -> Kept:
    plan = make_plan(model, nodes, spec)
    return Kept(plan, moved=() if previous is None else ("the plan was made anew for the new spec",))


def _allowed(plan: Plan, model: ModelFacts, spec: PlanSpec) -> bool:
    """Whether the spec allows the cut as such, wherever its stages are."""
    if any(pipeline.stages[-1].block_end != model.shape.layers + 2 for pipeline in plan.pipelines):
        return False
    for pipeline in plan.pipelines:
        if spec.stage_count is not None and len(pipeline.stages) != spec.stage_count:
            return False
        if spec.manual and [layers_of(stage, model) for stage in pipeline.stages] != sorted(
            (each.first, each.last + 1) for each in spec.manual
        ):
            return False
    return True


class _Keeper:
    """One run of keep_plan: which nodes are taken so far, what moved, what is missing."""

    def __init__(
        self,
        previous: Plan,
        model: ModelFacts,
        nodes: Sequence[NodeFacts],
        staying: Sequence[NodeFacts],
        spec: PlanSpec,
    ) -> None:
        self._previous = previous
        self._model = model
        self._nodes = nodes
        self._spec = spec
        self._costs = Costs(model, spec)
        self._staying = {node.name: node for node in (*nodes, *staying)}
        self._sites, self._refused = usable_sites(nodes, spec)
        self._moved: list[str] = []
        self._missing: list[str] = []

    def keep(self) -> Kept:
        """See keep_plan."""
        old = self._previous.pipelines[: self._spec.replicas]
        # What stays is settled first, so that no replacement takes the node of a stage that stays.
        stays = {stage.node for pipeline in old for stage in pipeline.stages if self._can_stay(stage)}
        pipelines = [self._repaired(pipeline, stays) for pipeline in old]
        if self._missing:
            anew = self._all_anew()
            if anew is not None:
                return anew
        pipelines += self._added(pipelines)
        return Kept(self._document(pipelines), tuple(self._moved), tuple(self._missing))

    def _can_stay(self, stage: StagePlan) -> bool:
        node = self._staying.get(stage.node)
        if node is None or stage.device not in node.devices:
            return False
        if stage.device not in self._spec.devices and not self._spec.manual:
            return False
        # A stage that runs may use what it has: the share that is kept free matters for a place that is chosen.
        caps = [cap for cap in (node.memory_cap, self._spec.node_limits.get(node.name)) if cap is not None]
        limit = min([node.usable, *caps])
        return self._costs.fits(Site(node, stage.device, limit), *layers_of(stage, self._model))

    def _repaired(self, pipeline: PipelinePlan, taken: set[str]) -> PipelinePlan:
        stages = []
        for stage in pipeline.stages:
            node = self._staying.get(stage.node)
            if node is not None and stage.node in taken and self._can_stay(stage):
                # The limit that it was planned for: what other pods take or give back since does not change the plan.
                stages.append(stage_on(self._costs, stage, Site(node, stage.device, stage.limit)))
                continue
            site = self._standby(pipeline.index, stage, taken) or self._replacement(stage, taken)
            if site is None:
                self._missing.append(self._what_is_missing(stage, taken))
                stages.append(stage)
                continue
            taken.add(site.name)
            self._moved.append(f"stage {stage.index} moved from {stage.node} to {site.name}")
            stages.append(stage_on(self._costs, stage, site))
        return pipeline.model_copy(update={"stages": tuple(stages)})

    def _standby(self, pipeline: int, stage: StagePlan, taken: Collection[str]) -> Site | None:
        """A node where these very blocks are loaded already; one that stands by for this stage before another's."""
        if pinned(stage, self._model, self._spec):
            return None
        sites = {site.name: site for site in self._sites if site.name not in taken}
        loaded = [
            standby
            for standby in self._previous.standbys
            if (standby.stage.block_start, standby.stage.block_end) == (stage.block_start, stage.block_end)
            and standby.stage.node in sites
            and sites[standby.stage.node].device is standby.stage.device
        ]
        best = min(
            loaded,
            key=lambda each: ((each.pipeline, each.stage.index) != (pipeline, stage.index), each.stage.node),
            default=None,
        )
        return None if best is None else sites[best.stage.node]

    def _replacement(self, stage: StagePlan, taken: Collection[str]) -> Site | None:
        """The quickest free node that holds the stage's layers."""
        if pinned(stage, self._model, self._spec):
            return None
        layers = layers_of(stage, self._model)
        free = [site for site in self._sites if site.name not in taken and self._costs.fits(site, *layers)]
        return min(free, key=lambda site: (self._costs.stage_ms(site, *layers), site.name), default=None)

    def _what_is_missing(self, stage: StagePlan, taken: Collection[str]) -> str:
        layers = layers_of(stage, self._model)
        needs = memory(self._costs.memory(stage.device, *layers))
        free = [site for site in self._sites if site.name not in taken]
        found = "; ".join(f"{site.name} allows {size(site.limit)}" for site in free[:8])
        why = found or "; ".join(self._refused[:8]) or f"all of {count(len(self._sites), 'node')} hold a stage"
        return f"stage {stage.index} of {stage.node} needs a node with {stage.device} and {needs}: {why}"

    def _all_anew(self) -> Kept | None:
        """Another cut over the nodes that are left: it serves, where holding on to this one does not."""
        try:
            plan = make_plan(self._model, self._nodes, self._spec)
        except PlanError:
            return None
        return Kept(plan, moved=(*self._missing, "the model was cut anew for the nodes that are left"))

    def _added(self, pipelines: Sequence[PipelinePlan]) -> list[PipelinePlan]:
        """Further pipelines on nodes that hold nothing; what cannot be had is missing, and disturbs nothing."""
        more = self._spec.replicas - len(pipelines)
        if more <= 0:
            return []
        held = {stage.node for pipeline in pipelines for stage in pipeline.stages}
        free = [node for node in self._nodes if node.name not in held]
        for number in range(more, 0, -1):
            try:
                made = make_plan(self._model, free, replace(self._spec, replicas=number, spare_nodes=0))
            except PlanError as error:
                problem = str(error)
                continue
            if number < more:
                self._missing.append(f"{count(more - number, 'pipeline')} more: {problem}")
            self._moved.append(f"{count(number, 'pipeline')} added")
            return [
                pipeline.model_copy(update={"index": len(pipelines) + at}) for at, pipeline in enumerate(made.pipelines)
            ]
        self._missing.append(f"{count(more, 'pipeline')} more: {problem}")
        return []

    def _document(self, pipelines: Sequence[PipelinePlan]) -> Plan:
        held = {stage.node for pipeline in pipelines for stage in pipeline.stages}
        ranges = {layers_of(stage, self._model) for pipeline in pipelines for stage in pipeline.stages}
        spares = [
            site.name
            for site in self._sites
            if site.name not in held and any(self._costs.fits(site, *each) for each in ranges)
        ]
        moved = bool(self._moved) or len(pipelines) != len(self._previous.pipelines)
        return self._previous.model_copy(
            update={
                "model_digest": self._model.digest,
                "streams": self._spec.streams,
                "max_context": self._spec.context_for(self._model.shape),
                "pipelines": tuple(pipelines),
                "spares": tuple(spares),
                "reasons": (*self._previous.reasons, *self._moved)[-32:] if moved else self._previous.reasons,
            }
        )
