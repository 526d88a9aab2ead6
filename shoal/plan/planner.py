"""make_plan: which node serves which layers, and why; or why it cannot be, with the sum for each node.

Pure: the same facts in any order give the same plan. Order of wishes: it fits; then the slowest stage is as short as
can be; then as few stages as can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from shoal.errors import PlanError, UsageError
from shoal.plan.costs import Costs, Site, usable_sites
from shoal.plan.document import PipelinePlan, Plan, StagePlan
from shoal.plan.facts import ModelFacts, NodeFacts, PlanSpec
from shoal.plan.manual import manual_chains, refusal
from shoal.plan.search import Chain, Piece, best_chains
from shoal.plan.words import count, memory, size

NAMED_NODES = 8


def make_plan(model: ModelFacts, nodes: Sequence[NodeFacts], spec: PlanSpec) -> Plan:
    """Plan `spec.replicas` pipelines of the model over the nodes.

    Raises PlanError when nothing fits or a manual range is wrong, UsageError when the spec asks for what the model
    cannot do at all.
    """
    _check(model, nodes, spec)
    costs = Costs(model, spec)
    sites, refused = usable_sites(nodes, spec)
    if spec.manual:
        # A device that a range names is allowed for that range, whether spec.devices has it or not.
        by_hand = [each.device for each in spec.manual if each.device is not None]
        places, _ = usable_sites(nodes, replace(spec, devices=(*spec.devices, *by_hand)))
        chains = manual_chains(costs, places, spec.devices, spec.manual, spec.replicas)
        notes = [f"the cut is manual: {count(len(spec.manual), 'range')} as given"]
    else:
        chains, notes = _chosen(costs, sites, refused, spec)
    held = {piece.site.name for chain in chains for piece in chain}
    spares = [site for site in sites if site.name not in held and _could_hold_one(costs, site, chains)]
    one_node = [site for site in sites if costs.fits(site, 0, costs.layers)]
    pipelines = tuple(_pipeline(costs, index, chain) for index, chain in enumerate(chains))
    return Plan(
        model_digest=model.digest,
        layers=costs.layers,
        streams=spec.streams,
        max_context=spec.context_for(model.shape),
        pipelines=pipelines,
        spares=tuple(site.name for site in spares),
        reasons=(*notes, *_reasons(costs, spec, chains, pipelines), *refused[:NAMED_NODES]),
        advice=_advice(costs, spec, pipelines, one_node, spares),
        fits_one_node=bool(one_node),
    )


def _check(model: ModelFacts, nodes: Sequence[NodeFacts], spec: PlanSpec) -> None:
    if not nodes:
        raise PlanError("there are 0 nodes: nothing can be planned")
    names = [node.name for node in nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"node {twice} is listed {names.count(twice)} times")
    context = spec.context_for(model.shape)
    if context > model.shape.max_context:
        raise UsageError(
            f"scheduler.maxContext is {context} tokens, the model was made for {model.shape.max_context}: "
            f"set it to {model.shape.max_context} or less"
        )


def _chosen(costs: Costs, sites: list[Site], refused: list[str], spec: PlanSpec) -> tuple[tuple[Chain, ...], list[str]]:
    """The best chains, leaving nodes for spares if that is possible; and what has to be said about it."""
    wanted = spec.stage_count
    if wanted is not None and wanted > costs.layers:
        raise PlanError(f"stages.count is {wanted}, the model has {costs.layers} layers: at most one stage a layer")
    needed = (wanted or 1) * spec.replicas
    if needed > len(sites):
        asked = f"{count(spec.replicas, 'pipeline')} of {count(wanted or 1, 'stage')}"
        others = f" ({'; '.join(refused[:NAMED_NODES])})" if refused else ""
        raise PlanError(f"{asked} need {count(needed, 'node')}, {len(sites)} can be used{others}")
    notes = [] if wanted is None else [f"stages.count asks for {count(wanted, 'stage')}"]
    kept = max(len(sites) - spec.spare_nodes, 0)
    chains = None
    if kept >= needed:
        chains = best_chains(costs, sites, replicas=spec.replicas, exactly=wanted, most_nodes=kept)
    if chains is None and spec.spare_nodes:
        chains = best_chains(costs, sites, replicas=spec.replicas, exactly=wanted, most_nodes=len(sites))
        notes.append(f"placement.sparePods is {spec.spare_nodes}, but the model needs more than {count(kept, 'node')}")
    if chains is None:
        raise PlanError(_why_not(costs, sites, refused, spec))
    return chains, notes


def _could_hold_one(costs: Costs, site: Site, chains: Sequence[Chain]) -> bool:
    return any(costs.fits(site, piece.start, piece.end) for chain in chains for piece in chain)


def _pipeline(costs: Costs, index: int, chain: Chain) -> PipelinePlan:
    return PipelinePlan(index=index, stages=tuple(_stage(costs, number, piece) for number, piece in enumerate(chain)))


def _stage(costs: Costs, index: int, piece: Piece) -> StagePlan:
    """Layers become blocks: block 0 is the embedding, block i is layer i - 1, the last one the head."""
    site, start, end = piece.site, piece.start, piece.end
    step_ms = costs.compute_ms(site, start, end)
    return StagePlan(
        index=index,
        node=site.name,
        device=site.device,
        block_start=0 if start == 0 else start + 1,
        block_end=end + 2 if end == costs.layers else end + 1,
        memory=costs.memory(site.device, start, end),
        step_ms=round(step_ms, 3),
        hop_ms=round(costs.stage_ms(site, start, end) - step_ms, 3),
        limit=site.limit,
        kv_bytes_per_token=costs.kv_bytes_per_token(site.device, start, end),
    )


def _link_words(site: Site) -> str:
    """The link of a node where it was measured: a slow one explains slow prompts."""
    speed = site.node.link_mbps
    return "" if speed is None else f"; its link was measured: {site.node.link_ms:.2f} ms, {speed:.0f} MB/s"


def _reasons(costs: Costs, spec: PlanSpec, chains: Sequence[Chain], pipelines: Sequence[PipelinePlan]) -> list[str]:
    """Why the plan is so: the sums, the slowest stage, what had to give."""
    reasons = [
        f"{count(costs.layers, 'layer')}, {size(costs.model.total_bytes)} of weights; KV for {spec.streams} x "
        f"{costs.kv_tokens // spec.streams} tokens"
    ]
    for pipeline, chain in zip(pipelines, chains, strict=True):
        label = f"pipeline {pipeline.index}: " if len(pipelines) > 1 else ""
        for stage, piece in zip(pipeline.stages, chain, strict=True):
            reasons.append(
                f"{label}stage {stage.index} on {stage.node} ({stage.device}): {stage.describe_blocks(costs.layers)}; "
                f"{memory(stage.memory)} of {size(stage.limit)} allowed, {_limit_words(piece.site, spec)}"
                f"{_link_words(piece.site)}"
            )
        slowest = max(pipeline.stages, key=lambda stage: stage.step_ms + stage.hop_ms)
        reasons.append(
            f"{label}the slowest of {count(len(chain), 'stage')} is {slowest.index} on {slowest.node}: "
            f"{slowest.step_ms:.1f} ms a token + {slowest.hop_ms:.1f} ms hop"
        )
    preferred = spec.devices[0]
    others = {piece.site.name: piece.site for chain in chains for piece in chain if piece.site.device is not preferred}
    return reasons + [
        f"{site.name} has no {preferred}: its stage uses {site.device}, which spec.devices allows"
        for _, site in sorted(others.items())
        if preferred not in site.node.devices
    ]


def _limit_words(site: Site, spec: PlanSpec) -> str:
    if site.limit < int(spec.max_memory_fraction * site.node.usable):
        return f"a cap of this node ({size(site.node.usable)} are free)"
    return f"{spec.max_memory_fraction:.0%} of {size(site.node.usable)} free"


def _advice(
    costs: Costs, spec: PlanSpec, pipelines: Sequence[PipelinePlan], one_node: Sequence[Site], spares: Sequence[Site]
) -> tuple[str, ...]:
    """FitsOneNode, and spares that are missing or too small."""
    advice = []
    if one_node:
        advice.append(_fits_one_node(costs, pipelines, one_node))
    wanted = spec.spare_nodes
    if len(spares) < wanted:
        advice.append(
            f"placement.sparePods asks for {count(wanted, 'spare node')}, {len(spares)} can hold a stage: "
            f"add {count(wanted - len(spares), 'node')}"
        )
    return tuple(advice)


def _fits_one_node(costs: Costs, pipelines: Sequence[PipelinePlan], one_node: Sequence[Site]) -> str:
    """That one node is enough, and what more nodes would give as replicas instead of as stages."""
    best = {site.name: costs.stage_ms(site, 0, costs.layers) for site in one_node}
    quickest = min(one_node, key=lambda site: (best[site.name], site.name))
    whole = memory(costs.memory(quickest.device, 0, costs.layers))
    text = f"FitsOneNode: the whole model takes {whole} and fits {quickest.name} ({size(quickest.limit)} allowed)"
    hosts = {site.node.host or site.name for site in one_node}
    single = all(len(pipeline.stages) == 1 for pipeline in pipelines)
    if len(hosts) < 2 or (single and len(pipelines) >= len(hosts)):
        return text
    apart = sum(_rate(min(best[site.name] for site in one_node if (site.node.host or site.name) == h)) for h in hosts)
    return (
        f"{text}; replicas: {len(hosts)} with stages.count: 1 would give about "
        f"{_rate(best[quickest.name]):.0f} tokens/s to one user and {apart:.0f} to {len(hosts)}, this plan about "
        f"{max(_rate(pipeline.token_ms) for pipeline in pipelines):.0f} to one and "
        f"{sum(_rate(pipeline.slowest_ms) for pipeline in pipelines):.0f} when it is full"
    )


def _rate(ms: float) -> float:
    """Tokens a second at `ms` a token."""
    return 1000 / max(ms, 0.001)


def _why_not(costs: Costs, sites: Sequence[Site], refused: Sequence[str], spec: PlanSpec) -> str:
    """The sum for each node: how many layers it could hold, and what one more would take."""
    total = costs.layers
    held = {site.name: _room(costs, site) for site in sites}
    wanted = f"{count(spec.replicas, 'pipeline')} of " if spec.replicas > 1 else ""
    cut = f" in {count(spec.stage_count, 'stage')}" if spec.stage_count is not None else ""
    head = (
        f"no plan fits {wanted}{total} layers{cut} ({size(costs.model.total_bytes)} of weights, KV for "
        f"{spec.streams} x {costs.kv_tokens // spec.streams} tokens)"
    )
    sums = [_room_words(costs, site, held[site.name]) for site in sites[:NAMED_NODES]]
    if len(sites) > NAMED_NODES:
        sums.append(f"and {count(len(sites) - NAMED_NODES, 'more node')}")
    most = f"at most {sum(held.values())} of {total * spec.replicas} layers have room"
    help_ = "add nodes, close programs on these, or lower scheduler.streams, scheduler.maxContext or precision"
    return "; ".join([f"{head}: {most}", *sums, *refused[:NAMED_NODES]]) + f"; {help_}"


def _room(costs: Costs, site: Site) -> int:
    """Layers that the site could hold in its best position: between two others, or first or last when that is more."""
    if costs.fits(site, 0, costs.layers):
        return costs.layers
    starts = range(costs.layers) if not costs.uniform else {0, min(1, costs.layers - 1), costs.layers - 1}
    return max(costs.most_layers(site, start, inf) - start for start in starts)


def _room_words(costs: Costs, site: Site, held: int) -> str:
    """`pc-01 (GPU) has room for 17 layers: 18 need …`"""
    start = 0 if held + 1 >= costs.layers else 1
    end = min(start + held + 1, costs.layers)
    if costs.fits(site, start, end):
        return f"{site.name} ({site.device}) has room for {count(held, 'layer')} of {size(site.limit)} allowed"
    return f"{refusal(costs, site, start, end)}, {count(held, 'layer')} fit"
