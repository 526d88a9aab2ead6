"""Manual cuts: the ranges are the user's; what is left to the planner is to check them and to find nodes for those
stages that name none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from shoal.errors import PlanError
from shoal.plan.costs import Costs, Site
from shoal.plan.document import Device
from shoal.plan.facts import ManualRange
from shoal.plan.search import Chain, Piece
from shoal.plan.words import count, layers, memory, size


def manual_chains(
    costs: Costs, sites: Sequence[Site], devices: Sequence[Device], ranges: Sequence[ManualRange], replicas: int
) -> tuple[Chain, ...]:
    """Chains with exactly these ranges; raises PlanError when they do not cover the model, or do not fit.

    `devices` are those that a range without a device of its own may use.
    """
    ordered = sorted(ranges, key=lambda each: each.first)
    _covers(ordered, costs.layers)
    named = [each.node for each in ordered if each.node is not None]
    if named and replicas > 1:
        raise PlanError(f"{count(replicas, 'replica')} cannot all use node {named[0]}: name no nodes, or use 1 replica")
    stages = [each for _ in range(replicas) for each in ordered]
    offers = [_offers(costs, sites, devices, each, named) for each in stages]
    placed = _quickest_assignment(costs, offers)
    if placed is None:
        free = count(len({piece.site.name for offer in offers for piece in offer}), "node")
        raise PlanError(
            f"{count(len(stages), 'manual stage')} need as many nodes, and {free} can hold at least one of them: "
            "add nodes, or make the ranges smaller"
        )
    pieces = iter(placed)
    return tuple(tuple(next(pieces) for _ in ordered) for _ in range(replicas))


def _covers(ordered: Sequence[ManualRange], total: int) -> None:
    """Every layer exactly once."""
    for each in ordered:
        if each.first > each.last:
            raise PlanError(f"manual range {each.first}-{each.last} is empty: first must not be greater than last")
    if ordered[0].first != 0:
        raise PlanError(f"manual ranges leave out {layers(0, ordered[0].first)}: the first range must start at layer 0")
    for before, after in pairwise(ordered):
        if after.first > before.last + 1:
            raise PlanError(f"manual ranges leave out {layers(before.last + 1, after.first)}")
        if after.first <= before.last:
            twice = layers(after.first, min(before.last, after.last) + 1)
            raise PlanError(
                f"manual ranges {before.first}-{before.last} and {after.first}-{after.last} both hold {twice}"
            )
    last = max(each.last for each in ordered)
    if last != total - 1:
        problem = f"leave out {layers(last + 1, total)}" if last < total - 1 else f"end at layer {last}"
        raise PlanError(f"manual ranges {problem}: the model has {total} layers, 0-{total - 1}")


def _offers(
    costs: Costs, sites: Sequence[Site], devices: Sequence[Device], wanted: ManualRange, named: Sequence[str]
) -> list[Piece]:
    """The nodes that can hold the range. A node that another stage names is not offered to this one."""
    start, end = wanted.first, wanted.last + 1
    title = layers(start, end)
    if wanted.node is not None:
        candidates = [site for site in sites if site.name == wanted.node]
        if not candidates:
            known = ", ".join(site.name for site in sites[:8]) or "none"
            raise PlanError(f"{title}: node {wanted.node} is not among the {len(sites)} usable nodes ({known})")
    else:
        candidates = [site for site in sites if site.name not in named]
    allowed = devices if wanted.device is None else (wanted.device,)
    with_device = [
        replace(site, device=device)
        for site in candidates
        if (device := next((each for each in allowed if each in site.node.devices), None)) is not None
    ]
    if candidates and not with_device:
        has = "; ".join(f"{site.name} has {', '.join(site.node.devices)}" for site in candidates[:8])
        raise PlanError(f"{title}: none of {count(len(candidates), 'node')} has device {' or '.join(allowed)} ({has})")
    candidates = with_device
    offers = [Piece(site, start, end) for site in candidates if costs.fits(site, start, end)]
    if not offers:
        sums = "; ".join(refusal(costs, site, start, end) for site in candidates[:8]) or "0 nodes are left for it"
        raise PlanError(f"{title} fit no node: {sums}" if wanted.node is None else f"{title} do not fit: {sums}")
    return offers


def refusal(costs: Costs, site: Site, start: int, end: int) -> str:
    """Why a stage does not fit a site, with the sum."""
    tensor = costs.refused_tensor(site, start, end)
    if tensor is not None:
        return f"{site.name} ({site.device}): a tensor of {size(tensor)} is more than the device allocates in one piece"
    needs = memory(costs.memory(site.device, start, end))
    return f"{site.name} ({site.device}): {layers(start, end)} need {needs} of {size(site.limit)} allowed"


def _quickest_assignment(costs: Costs, offers: Sequence[Sequence[Piece]]) -> list[Piece] | None:
    """One site for each stage, all different, with the shortest slowest stage (bottleneck matching)."""

    def ms(piece: Piece) -> float:
        return costs.stage_ms(piece.site, piece.start, piece.end)

    times = sorted({ms(piece) for offer in offers for piece in offer})
    best: list[Piece] | None = None
    low, high = 0, len(times) - 1
    while low <= high:
        middle = (low + high) // 2
        quick = [[piece for piece in offer if ms(piece) <= times[middle]] for offer in offers]
        found = _matching(quick)
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
    return best


def _matching(offers: Sequence[Sequence[Piece]]) -> list[Piece] | None:
    """A perfect matching of stages to sites by augmenting paths (Kuhn), or None."""
    owner: dict[str, tuple[int, Piece]] = {}

    def augment(stage: int, seen: set[str]) -> bool:
        for piece in offers[stage]:
            name = piece.site.name
            if name in seen:
                continue
            seen.add(name)
            if name not in owner or augment(owner[name][0], seen):
                owner[name] = (stage, piece)
                return True
        return False

    if not all(augment(stage, set()) for stage in range(len(offers))):
        return None
    return [piece for _, piece in sorted(owner.values(), key=lambda each: each[0])]
