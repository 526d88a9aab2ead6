"""The search is exact: on small cases it finds what trying everything finds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.manifest import ModelShape
from shoal.plan.costs import Costs, Site, usable_sites
from shoal.plan.devices import MIB
from shoal.plan.document import Device
from shoal.plan.facts import ModelFacts, NodeFacts, PlanSpec
from shoal.plan.search import MAX_NODES_UNEQUAL, Chain, best_chains

SPEC = PlanSpec(devices=(Device.GPU, Device.CPU), streams=1, max_context=128, max_memory_fraction=1.0)


def model_of(layer_mib: list[int], embed_mib: int = 0, head_mib: int = 0) -> ModelFacts:
    """A model of layers of these sizes; its KV memory is next to nothing."""
    count = len(layer_mib)
    return ModelFacts(
        shape=ModelShape(
            family="llama",
            layers=count,
            hidden_size=64,
            heads=1,
            kv_heads=1,
            head_size=64,
            vocab_size=256,
            max_context=128,
        ),
        embed_bytes=embed_mib * MIB,
        layer_bytes=tuple(size * MIB for size in layer_mib),
        head_bytes=head_mib * MIB,
        largest_tensors=(0,) * (count + 2),
    )


def node_of(
    name: str, free_mib: int, device: Device = Device.CPU, speed: float = 1.0, link_ms: float = 0.5
) -> NodeFacts:
    """A node with so much free memory."""
    free = free_mib * MIB
    return NodeFacts(name, (device,), free, free, free, speeds={device: speed}, link_ms=link_ms)


def slowest(costs: Costs, chain: Chain) -> float:
    return max(costs.stage_ms(piece.site, piece.start, piece.end) for piece in chain)


def every_cut(costs: Costs, sites: list[Site], exactly: int | None) -> Iterator[tuple[float, int]]:
    """(slowest stage, stages) of every chain that fits: all orders of all sets of sites, all places to cut."""
    for stages in range(1, min(len(sites), costs.layers) + 1):
        if exactly not in (None, stages):
            continue
        for chosen in permutations(sites, stages):
            for cuts in combinations(range(1, costs.layers), stages - 1):
                ranges = list(zip(chosen, (0, *cuts), (*cuts, costs.layers), strict=True))
                if all(costs.fits(site, start, end) for site, start, end in ranges):
                    yield max(costs.stage_ms(site, start, end) for site, start, end in ranges), stages


NODES = st.lists(
    st.tuples(
        st.integers(500, 2200),
        st.sampled_from([Device.GPU, Device.CPU]),
        st.sampled_from([0.5, 1.0, 2.0]),
        st.sampled_from([0.1, 0.5, 4.0]),
    ),
    min_size=1,
    max_size=4,
).map(lambda rows: [node_of(f"pc-{at}", *row) for at, row in enumerate(rows)])
EQUAL = st.tuples(st.integers(1, 6), st.integers(50, 600)).map(lambda pair: [pair[1]] * pair[0])
UNEQUAL = st.lists(st.integers(20, 800), min_size=2, max_size=5)
ENDS = st.integers(0, 500)


@settings(max_examples=150, deadline=None)
@given(nodes=NODES, layers=EQUAL | UNEQUAL, embed=ENDS, head=ENDS, exactly=st.none() | st.integers(1, 4))
def test_search_finds_what_trying_everything_finds(
    nodes: list[NodeFacts], layers: list[int], embed: int, head: int, exactly: int | None
) -> None:
    costs = Costs(model_of(layers, embed, head), SPEC)
    sites, _ = usable_sites(nodes, SPEC)
    found = best_chains(costs, sites, replicas=1, exactly=exactly, most_nodes=len(sites))
    best = min(every_cut(costs, sites, exactly), default=None)
    if best is None:
        assert found is None
        return
    assert found is not None
    (chain,) = found
    assert (slowest(costs, chain), len(chain)) == best
    assert all(costs.fits(piece.site, piece.start, piece.end) for piece in chain)
    assert [chain[0].start, *(piece.end for piece in chain)] == [*(piece.start for piece in chain), costs.layers]


@settings(max_examples=40, deadline=None)
@given(nodes=NODES, layers=EQUAL | UNEQUAL, most=st.integers(1, 4))
def test_search_uses_no_more_nodes_than_allowed(nodes: list[NodeFacts], layers: list[int], most: int) -> None:
    costs = Costs(model_of(layers), SPEC)
    sites, _ = usable_sites(nodes, SPEC)
    found = best_chains(costs, sites, replicas=1, exactly=None, most_nodes=most)
    allowed = [each for each in every_cut(costs, sites, None) if each[1] <= most]
    assert (found is None) == (not allowed)
    if found is not None:
        assert (slowest(costs, found[0]), len(found[0])) == min(allowed)


def every_pair(costs: Costs, sites: list[Site]) -> Iterator[float]:
    """The slowest stage of every two chains on disjoint sites."""
    for size in range(1, len(sites)):
        for ours in combinations(sites, size):
            theirs = [site for site in sites if site not in ours]
            one = min(every_cut(costs, list(ours), None), default=None)
            two = min(every_cut(costs, theirs, None), default=None)
            if one and two:
                yield max(one[0], two[0])


@settings(max_examples=40, deadline=None)
@given(nodes=NODES, layers=EQUAL | st.lists(st.integers(20, 800), min_size=2, max_size=4))
def test_two_pipelines_are_as_good_as_any_two(nodes: list[NodeFacts], layers: list[int]) -> None:
    costs = Costs(model_of(layers), SPEC)
    sites, _ = usable_sites(nodes, SPEC)
    found = best_chains(costs, sites, replicas=2, exactly=None, most_nodes=len(sites))
    best = min(every_pair(costs, sites), default=None)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert max(slowest(costs, chain) for chain in found) == best
    used = [piece.site.name for chain in found for piece in chain]
    assert len(used) == len(set(used))


def test_many_nodes_and_layers_are_planned_exactly() -> None:
    """Sixteen different nodes, eighty layers: the time of the slowest stage cannot be shortened by a layer."""
    nodes = [node_of(f"pc-{at:02}", 3000 + 400 * at, speed=0.5 + 0.1 * at) for at in range(16)]
    costs = Costs(model_of([400] * 80), SPEC)
    sites, _ = usable_sites(nodes, SPEC)
    found = best_chains(costs, sites, replicas=1, exactly=None, most_nodes=16)
    assert found is not None
    (chain,) = found
    limit = slowest(costs, chain)
    room = sum(
        max(
            (
                layers
                for layers in range(1, 79)
                if costs.fits(site, 1, 1 + layers) and costs.stage_ms(site, 1, 1 + layers) < limit
            ),
            default=0,
        )
        for site in sites
    )
    assert room < costs.layers


def test_unequal_layers_use_the_roomiest_nodes_only() -> None:
    nodes = [node_of(f"pc-{at:02}", 1200 + at) for at in range(MAX_NODES_UNEQUAL + 4)]
    costs = Costs(model_of([100 + at for at in range(20)]), SPEC)
    sites, _ = usable_sites(nodes, SPEC)
    found = best_chains(costs, sites, replicas=1, exactly=None, most_nodes=len(sites))
    assert found is not None
    assert {piece.site.name for piece in found[0]} <= {f"pc-{at:02}" for at in range(4, 14)}


@pytest.mark.parametrize("layers", [[100] * 12, [100 + at for at in range(12)]])
def test_case_43_the_faster_node_gets_more_layers(layers: list[int]) -> None:
    """exo#701: weigh by speed, not only by memory."""
    nodes = [node_of("fast", 9000, speed=3.0), node_of("slow", 9000, speed=1.0)]
    costs = Costs(model_of(layers), SPEC)
    sites, _ = usable_sites(nodes, SPEC)
    found = best_chains(costs, sites, replicas=1, exactly=2, most_nodes=2)
    assert found is not None
    held = {piece.site.name: piece.end - piece.start for piece in found[0]}
    assert held["fast"] >= 8
