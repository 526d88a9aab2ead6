"""Standbys: stages that are loaded on nodes which hold none, to take the place of a lost one at once.

A standby serves the very blocks of the stage that it stands by for, under the name that this stage would have on its
node. So taking over starts, pulls and loads nothing: the plan names the other node, and the chain is opened through it.
Each stage gets one before any gets a second; the heaviest first, because loading it again takes longest. A stage that
is to leave its node leaves it the same way, without a pause: it gets a standby, and moves when that is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from shoal.plan.costs import Costs, Site, usable_sites
from shoal.plan.document import Plan, StagePlan, Standby
from shoal.plan.facts import ModelFacts, NodeFacts, PlanSpec
from shoal.plan.words import count

Place = tuple[int, int]
"""Pipeline and stage."""


def with_standbys(
    plan: Plan,
    model: ModelFacts,
    nodes: Sequence[NodeFacts],
    spec: PlanSpec,
    *,
    previous: Sequence[Standby] = (),
    staying: Sequence[NodeFacts] = (),
    leaving: Collection[str] = (),
) -> Plan:
    """The plan with as many standbys as `spec.spare_nodes` asks for and nodes allow.

    `nodes` may be given one, `staying` may keep one of the `previous`; those that still stand by for something stay.
    Stages on nodes that are `leaving` get one before all others and beyond that number: they move to it.
    """
    costs = Costs(model, spec)
    sites = {site.name: site for site in usable_sites(nodes, spec)[0]}
    keeping = {site.name: site for site in usable_sites(staying, spec)[0]} | sites
    serving = {stage.node for pipeline in plan.pipelines for stage in pipeline.stages}
    stages = {
        (pipeline.index, stage.index): stage
        for pipeline in plan.pipelines
        for stage in pipeline.stages
        if not pinned(stage, model, spec)
    }
    kept: list[Standby] = []
    for standby in previous:
        site = keeping.get(standby.stage.node)
        wanted = stages.get((standby.pipeline, standby.stage.index))
        if site is None or wanted is None or site.name in serving or not _serves(standby.stage, wanted):
            continue
        if site.device is standby.stage.device and costs.fits(_all_of(site, spec), *layers_of(wanted, model)):
            # The limit that it was planned for: what other pods take or give back since does not change the plan.
            place = replace(site, limit=standby.stage.limit)
            kept.append(Standby(pipeline=standby.pipeline, stage=stage_on(costs, wanted, place)))
    urgent = {place: stage for place, stage in stages.items() if stage.node in leaving}
    chosen = _for_leaving(costs, urgent, kept, [site for site in sites.values() if site.name not in serving])
    most = spec.spare_nodes + len(chosen)
    taken = serving | {standby.stage.node for standby in chosen}
    chosen += [standby for standby in kept if standby.stage.node not in taken][: spec.spare_nodes]
    taken |= {standby.stage.node for standby in chosen}
    while len(chosen) < most:
        more = _next(costs, stages, chosen, [site for site in sites.values() if site.name not in taken])
        if more is None:
            break
        taken.add(more.stage.node)
        chosen.append(more)
    held = {standby.stage.node for standby in chosen}
    return plan.model_copy(
        update={"standbys": tuple(chosen), "spares": tuple(name for name in plan.spares if name not in held)}
    )


def missing_standbys(plan: Plan, spec: PlanSpec, leaving: Collection[str] = ()) -> str:
    """What there is too few of, in words; empty when there are as many as asked for."""
    there, asked = len(plan.standbys) - len(covered(plan, leaving)), spec.spare_nodes
    if there >= asked:
        return ""
    return (
        f"placement.sparePods asks for {count(asked, 'spare stage')}, {there} found a node: "
        f"add {count(asked - there, 'node')} that can hold one of the stages"
    )


def covered(plan: Plan, leaving: Collection[str]) -> dict[Place, Standby]:
    """The stages on nodes that are leaving and have a standby, each with the first of its own."""
    found: dict[Place, Standby] = {}
    for standby in plan.standbys:
        if plan.pipelines[standby.pipeline].stages[standby.stage.index].node in leaving:
            found.setdefault((standby.pipeline, standby.stage.index), standby)
    return found


def layers_of(stage: StagePlan, model: ModelFacts) -> tuple[int, int]:
    """The stage's layers [start, end): block i + 1 is layer i."""
    return max(stage.block_start - 1, 0), min(stage.block_end - 1, model.shape.layers)


def pinned(stage: StagePlan, model: ModelFacts, spec: PlanSpec) -> bool:
    """Whether the user has put the stage on a node by name: it waits for that node, and no other takes its place."""
    first = layers_of(stage, model)[0]
    return any(each.first == first and each.node is not None for each in spec.manual)


def stage_on(costs: Costs, stage: StagePlan, site: Site) -> StagePlan:
    """The same blocks on this site, with its sums."""
    layers = layers_of(stage, costs.model)
    step_ms = costs.compute_ms(site, *layers)
    return stage.model_copy(
        update={
            "node": site.name,
            "device": site.device,
            "memory": costs.memory(site.device, *layers),
            "step_ms": round(step_ms, 3),
            "hop_ms": round(costs.stage_ms(site, *layers) - step_ms, 3),
            "limit": site.limit,
            "kv_bytes_per_token": costs.kv_bytes_per_token(site.device, *layers),
            "address": "",
        }
    )


def _for_leaving(
    costs: Costs, urgent: Mapping[Place, StagePlan], kept: Sequence[Standby], free: Sequence[Site]
) -> list[Standby]:
    """One for each of these stages, as far as nodes allow: the one that it has; else on a free node; else in the place
    of a standby that is less urgent."""
    own = {(standby.pipeline, standby.stage.index): standby for standby in reversed(kept)}
    # In the order that they have: a plan that says the same is the same document.
    mine = [standby for place, standby in own.items() if place in urgent]
    chosen = [standby for standby in kept if standby in mine]
    left = {place: stage for place, stage in urgent.items() if place not in own}
    loaded = {standby.stage.node for standby in kept}
    for among in (
        [site for site in free if site.name not in loaded],
        [site for site in free if site.name in loaded],
    ):
        while left:
            taken = {standby.stage.node for standby in chosen}
            more = _next(costs, left, (), [site for site in among if site.name not in taken])
            if more is None:
                break
            del left[more.pipeline, more.stage.index]
            chosen.append(more)
    return chosen


def _next(
    costs: Costs, stages: Mapping[Place, StagePlan], chosen: Sequence[Standby], free: Sequence[Site]
) -> Standby | None:
    has = Counter((standby.pipeline, standby.stage.index) for standby in chosen)
    order = sorted(stages, key=lambda place: (has[place], -stages[place].memory.weights, place))
    for place in order:
        layers = layers_of(stages[place], costs.model)
        fitting = [site for site in free if costs.fits(site, *layers)]
        if fitting:
            site = min(fitting, key=lambda site: (costs.stage_ms(site, *layers), site.name))
            return Standby(pipeline=place[0], stage=stage_on(costs, stages[place], site))
    return None


def _serves(standby: StagePlan, wanted: StagePlan) -> bool:
    return (standby.block_start, standby.block_end) == (wanted.block_start, wanted.block_end)


def _all_of(site: Site, spec: PlanSpec) -> Site:
    """What a standby that runs may use: the share that is kept free matters for a place that is chosen."""
    caps = [cap for cap in (site.node.memory_cap, spec.node_limits.get(site.name)) if cap is not None]
    return replace(site, limit=min([site.node.usable, *caps]))
