"""The search for the best cut: shortest slowest stage first, then fewest stages.

The time of the slowest stage is one of finitely many: binary search over them, and for each ask whether the model can
be cut so that no stage takes longer (`Cut.fewest`). The answer is exact:

- layers of equal cost (nearly every model): only the number of layers in a stage counts, so nodes in the middle are
  interchangeable, and it is enough to try each pair of first and last node with the roomiest ones between them;
- unequal layers: breadth-first over sets of nodes, with the set of layers that each can have reached. Sets are many,
  so only the `MAX_NODES_UNEQUAL` roomiest nodes take part.

Several pipelines on disjoint nodes are a packing problem: nodes are dealt largest first to the pipeline that is
shortest, with backtracking bounded by `MAX_STEPS`; beyond that bound the cut is good, not proven best.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from shoal.plan.costs import Costs, Site

MAX_NODES_UNEQUAL = 10
MAX_STEPS = 7000


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers [start, end) on a site."""

    site: Site
    start: int
    end: int


Chain = tuple[Piece, ...]


class Cut(Protocol):
    """How to cut one model over some of the given sites."""

    def fewest(self, sites: Sequence[Site], within_ms: float, exactly: int | None, most: int) -> Chain | None:
        """A chain with no stage longer than `within_ms`, of as few stages as can be (or exactly so many), or None."""
        ...

    def times(self, sites: Sequence[Site]) -> set[float]:
        """Every time that a stage which fits can take."""
        ...

    def room(self, site: Site, within_ms: float) -> int:
        """The most layers that the site could hold in any position."""
        ...


def best_chains(
    costs: Costs, sites: Sequence[Site], *, replicas: int, exactly: int | None, most_nodes: int
) -> tuple[Chain, ...] | None:
    """The best `replicas` chains on disjoint sites, or None when there are none.

    `exactly` forces the number of stages of each chain; together they use no more than `most_nodes` sites.
    """
    cut: Cut = EqualLayers(costs) if costs.uniform else UnequalLayers(costs)

    def chains(within_ms: float) -> tuple[Chain, ...] | None:
        if replicas == 1:
            one = cut.fewest(sites, within_ms, exactly, most_nodes)
            return None if one is None else (one,)
        return _Packing(costs, cut, within_ms, exactly, most_nodes).pack(sites, replicas)

    best = chains(inf)
    if best is None:
        return None
    times = sorted(cut.times(sites))
    low, high = 0, len(times) - 1
    while low <= high:
        middle = (low + high) // 2
        found = chains(times[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
    return best


class EqualLayers:
    """Layers of equal cost: a site is described by how many it holds as first, middle and last stage."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._layers = costs.layers
        self._known: dict[tuple[str, float], tuple[int, int, int]] = {}

    def times(self, sites: Sequence[Site]) -> set[float]:
        """Of every number of layers in every position."""
        ranges = {(0, end) for end in range(1, self._layers + 1)}
        ranges |= {(start, self._layers) for start in range(1, self._layers)}
        ranges |= {(1, end) for end in range(2, self._layers)}
        return {self._costs.stage_ms(site, *each) for site in sites for each in ranges if self._costs.fits(site, *each)}

    def fewest(self, sites: Sequence[Site], within_ms: float, exactly: int | None, most: int) -> Chain | None:
        """See Cut."""
        if exactly in (None, 1) and most >= 1:
            alone = [site for site in sites if self._costs.suits(site, 0, self._layers, within_ms)]
            if alone:
                quickest = min(alone, key=lambda site: (self._costs.stage_ms(site, 0, self._layers), -site.limit))
                return (Piece(quickest, 0, self._layers),)
        chosen = self._choose(sites, within_ms, exactly, most)
        return None if chosen is None else self._share_out(chosen, within_ms)

    def room(self, site: Site, within_ms: float) -> int:
        """See Cut."""
        return self._layers if self._costs.suits(site, 0, self._layers, within_ms) else max(self._held(site, within_ms))

    def _choose(self, sites: Sequence[Site], within_ms: float, exactly: int | None, most: int) -> list[Site] | None:
        """The sites of the chain in order: first, those between, last."""
        held = {site.name: self._held(site, within_ms) for site in sites}
        ranked = sorted((site for site in sites if held[site.name][1]), key=lambda site: -held[site.name][1])
        most = min(most, self._layers)
        best: tuple[int, int, list[Site]] | None = None
        for first in sites:
            for last in sites:
                total = held[first.name][0] + held[last.name][2]
                if first is last or not held[first.name][0] or not held[last.name][2]:
                    continue
                wanted = exactly or (best[0] if best else most)
                between: list[Site] = []
                for site in ranked:
                    if len(between) + 2 >= wanted or (exactly is None and total >= self._layers):
                        break
                    if site is not first and site is not last:
                        between.append(site)
                        total += held[site.name][1]
                stages = len(between) + 2
                if total < self._layers or stages > most or exactly not in (None, stages):
                    continue
                # Among equals the roomiest: it leaves the most freedom to even out.
                if best is None or (stages, -total) < best[:2]:
                    best = (stages, -total, [first, *between, last])
        return None if best is None else best[2]

    def _held(self, site: Site, within_ms: float) -> tuple[int, int, int]:
        """How many layers the site holds as the first stage, between two others, and as the last one."""
        key = (site.name, within_ms)
        if key not in self._known:
            most = self._layers - 1
            self._known[key] = (
                self._most(site, within_ms, most, lambda number: (0, number)),
                self._most(site, within_ms, most - 1, lambda number: (1, 1 + number)),
                self._most(site, within_ms, most, lambda number: (self._layers - number, self._layers)),
            )
        return self._known[key]

    def _most(self, site: Site, within_ms: float, high: int, position: Callable[[int], tuple[int, int]]) -> int:
        low = 0
        while low < high:
            number = (low + high + 1) // 2
            if self._costs.suits(site, *position(number), within_ms):
                low = number
            else:
                high = number - 1
        return low

    def _share_out(self, sites: list[Site], within_ms: float) -> Chain:
        """Give each site one layer, then each further one to the site that would be done first with it.

        With equal layers that gives the shortest slowest stage; of equal times the emptiest site takes the layer.
        """
        costs, last = self._costs, len(sites) - 1
        held = [1] * len(sites)

        def offer(at: int) -> tuple[float, float, int] | None:
            more = held[at] + 1
            start, end = self._range(at, last, more)
            if not costs.suits(sites[at], start, end, within_ms):
                return None
            site = sites[at]
            fullness = costs.memory(site.device, start, end).total / site.limit
            return (costs.stage_ms(site, start, end), fullness, at)

        queue = [each for at in range(len(sites)) if (each := offer(at)) is not None]
        heapq.heapify(queue)
        for _ in range(self._layers - len(sites)):
            *_, at = heapq.heappop(queue)
            held[at] += 1
            again = offer(at)
            if again is not None:
                heapq.heappush(queue, again)
        ends = [sum(held[: at + 1]) for at in range(len(sites))]
        return tuple(Piece(site, end - number, end) for site, number, end in zip(sites, held, ends, strict=True))

    def _range(self, at: int, last: int, number: int) -> tuple[int, int]:
        """A range of that many layers in the position of the site: with the embedding, with the head, or neither."""
        if at == 0:
            return 0, number
        return (self._layers - number, self._layers) if at == last else (1, 1 + number)


class UnequalLayers:
    """Layers of different cost: breadth-first over sets of sites.

    For each set the layers that a chain over all of its sites can have reached, as bits of an int. Every stage holds
    at least one layer, the last one the rest.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._layers = costs.layers
        self._known: dict[tuple[str, float], tuple[list[int], int]] = {}

    def times(self, sites: Sequence[Site]) -> set[float]:
        """Of every range."""
        ends = range(1, self._layers + 1)
        return {
            self._costs.stage_ms(site, start, end)
            for site in self._roomiest(sites)
            for end in ends
            for start in range(end)
            if self._costs.fits(site, start, end)
        }

    def fewest(self, sites: Sequence[Site], within_ms: float, exactly: int | None, most: int) -> Chain | None:
        """See Cut."""
        sites = self._roomiest(sites)
        tables = [self._table(site, within_ms) for site in sites]
        reach = [spans for spans, _ in tables]
        closes = [closing for _, closing in tables]
        level: dict[int, int] = {0: 1}
        levels = [level]
        for stages in range(1, min(most, exactly or most, len(sites), self._layers) + 1):
            if exactly in (None, stages):
                for chosen, reached in level.items():
                    for at, closing in enumerate(closes):
                        if not chosen >> at & 1 and reached & closing:
                            return self._trace(sites, reach, levels, chosen, at, reached & closing)
            level = self._extended(level, reach)
            levels.append(level)
        return None

    def room(self, site: Site, within_ms: float) -> int:
        """See Cut."""
        if self._costs.suits(site, 0, self._layers, within_ms):
            return self._layers
        return max(self._costs.most_layers(site, start, within_ms) - start for start in range(self._layers))

    def _roomiest(self, sites: Sequence[Site]) -> list[Site]:
        kept = sorted(sites, key=lambda site: (-site.limit, site.name))[:MAX_NODES_UNEQUAL]
        return sorted(kept, key=lambda site: site.name)

    def _table(self, site: Site, within_ms: float) -> tuple[list[int], int]:
        key = (site.name, within_ms)
        if key not in self._known:
            self._known[key] = (self._reach(site, within_ms), self._closes(site, within_ms))
        return self._known[key]

    def _reach(self, site: Site, within_ms: float) -> list[int]:
        """For each start the ends that the site can take a chain to, as bits; never the last layer's."""
        spans = []
        for start in range(self._layers):
            end = min(self._costs.most_layers(site, start, within_ms), self._layers - 1)
            spans.append((1 << (end + 1)) - (1 << (start + 1)) if end > start else 0)
        return spans

    def _closes(self, site: Site, within_ms: float) -> int:
        """The starts from which the site can hold all the rest, as bits."""
        whole = 1 if self._costs.suits(site, 0, self._layers, within_ms) else 0
        rest = [self._costs.most_layers(site, start, within_ms) == self._layers for start in range(1, self._layers)]
        return whole | sum(1 << start for start, fits in enumerate(rest, start=1) if fits)

    def _extended(self, level: dict[int, int], reach: list[list[int]]) -> dict[int, int]:
        longer: dict[int, int] = {}
        for chosen, reached in level.items():
            for at, spans in enumerate(reach):
                if chosen >> at & 1:
                    continue
                ends = 0
                for start in _bits(reached):
                    ends |= spans[start]
                if ends:
                    longer[chosen | 1 << at] = longer.get(chosen | 1 << at, 0) | ends
        return longer

    def _trace(
        self,
        sites: list[Site],
        reach: list[list[int]],
        levels: list[dict[int, int]],
        chosen: int,
        last: int,
        starts: int,
    ) -> Chain:
        """Walk back from the last stage: which site could have brought the chain to its start."""
        start = _bits(starts)[0]
        pieces = [Piece(sites[last], start, self._layers)]
        for level in reversed(levels[: chosen.bit_count()]):
            at, before = next(
                (at, before)
                for at in _bits(chosen)
                for before in _bits(level.get(chosen & ~(1 << at), 0))
                if reach[at][before] >> start & 1
            )
            pieces.append(Piece(sites[at], before, start))
            chosen, start = chosen & ~(1 << at), before
        return tuple(reversed(pieces))


def _bits(number: int) -> list[int]:
    return [at for at in range(number.bit_length()) if number >> at & 1]


class _Packing:
    """Several chains on disjoint sites, none of their stages longer than `within_ms`."""

    def __init__(self, costs: Costs, cut: Cut, within_ms: float, exactly: int | None, most_nodes: int) -> None:
        self._layers = costs.layers
        self._cut = cut
        self._within_ms = within_ms
        self._exactly = exactly
        self._most_nodes = most_nodes
        self._steps = 0
        self._room: dict[str, int] = {}
        self._known: dict[frozenset[str], Chain | None] = {}

    def pack(self, sites: Sequence[Site], replicas: int) -> tuple[Chain, ...] | None:
        """Chains for all replicas, or None when none were found within the bound."""
        self._room = {site.name: self._cut.room(site, self._within_ms) for site in sites}
        roomiest = sorted((site for site in sites if self._room[site.name]), key=lambda site: -self._room[site.name])
        return self._deal(roomiest, [[] for _ in range(replicas)])

    def _deal(self, sites: list[Site], groups: list[list[Site]]) -> tuple[Chain, ...] | None:
        chains = [self._chain(group) for group in groups]
        whole = tuple(chain for chain in chains if chain is not None)
        if len(whole) == len(groups):
            return whole if sum(map(len, whole)) <= self._most_nodes else None
        self._steps += 1
        unfinished = [at for at, chain in enumerate(chains) if chain is None]
        if not sites or self._steps > MAX_STEPS or self._hopeless(sites, [groups[at] for at in unfinished]):
            return None
        tried_empty = False
        for at in sorted(unfinished, key=lambda each: self._held(groups[each])):
            if not groups[at] and tried_empty:
                continue
            tried_empty = tried_empty or not groups[at]
            dealt = [[*group, sites[0]] if each == at else group for each, group in enumerate(groups)]
            found = self._deal(sites[1:], dealt)
            if found is not None:
                return found
        return self._deal(sites[1:], groups)

    def _hopeless(self, sites: list[Site], unfinished: list[list[Site]]) -> bool:
        """Whether even all sites that are left cannot hold the layers that are missing."""
        missing = sum(max(0, self._layers - self._held(group)) for group in unfinished)
        return self._held(sites) < missing

    def _held(self, group: list[Site]) -> int:
        return sum(self._room[site.name] for site in group)

    def _chain(self, group: list[Site]) -> Chain | None:
        if self._held(group) < self._layers:
            return None
        key = frozenset(site.name for site in group)
        if key not in self._known:
            ordered = sorted(group, key=lambda site: site.name)
            self._known[key] = self._cut.fewest(ordered, self._within_ms, self._exactly, len(group))
        return self._known[key]
