"""Manual cuts: what the user wrote is checked, and used as it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import PlanError
from shoal.manifest import ModelShape
from shoal.plan import Device, ManualRange, ModelFacts, NodeFacts, PlanSpec, make_plan
from shoal.plan.costs import Costs, usable_sites
from shoal.plan.devices import GIB, MIB

SPEC = PlanSpec(devices=(Device.CPU,), streams=1, max_context=512)
MODEL = ModelFacts(
    shape=ModelShape(
        family="llama",
        layers=12,
        hidden_size=1024,
        heads=16,
        kv_heads=8,
        head_size=64,
        vocab_size=32000,
        max_context=8192,
    ),
    embed_bytes=100 * MIB,
    layer_bytes=(300 * MIB,) * 12,
    head_bytes=100 * MIB,
    largest_tensors=(100 * MIB,) * 14,
)


def node_of(name: str, free_gib: float = 16, *devices: Device, speed: float = 1.0) -> NodeFacts:
    free = int(free_gib * GIB)
    devices = devices or (Device.CPU,)
    return NodeFacts(name, devices, free, free, free, speeds=dict.fromkeys(devices, speed))


def manual(*ranges: tuple[int, int], node: str | None = None) -> PlanSpec:
    return replace(SPEC, manual=tuple(ManualRange(first, last, node) for first, last in ranges))


NODES = [node_of("pc-0"), node_of("pc-1"), node_of("pc-2")]


def test_case_42_manual_layers_are_used_as_they_are() -> None:
    """exo#1720: layers by hand, in any order of the list, with and without nodes."""
    spec = replace(SPEC, manual=(ManualRange(3, 11, "pc-2"), ManualRange(0, 2)))
    plan = make_plan(MODEL, NODES, spec)
    (pipeline,) = plan.pipelines
    assert [(stage.block_start, stage.block_end) for stage in pipeline.stages] == [(0, 4), (4, 14)]
    assert pipeline.stages[1].node == "pc-2"
    assert pipeline.stages[0].node in {"pc-0", "pc-1"}
    assert "the cut is manual" in plan.reasons[0]


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(0, 5), (7, 11)], "leave out layer 6"),
        ([(0, 4), (7, 11)], "leave out layers 5-6"),
        ([(2, 11)], "leave out layers 0-1"),
        ([(0, 9)], "leave out layers 10-11: the model has 12 layers, 0-11"),
        ([(0, 14)], "end at layer 14: the model has 12 layers, 0-11"),
        ([(0, 5), (5, 11)], "ranges 0-5 and 5-11 both hold layer 5"),
        ([(0, 8), (2, 4), (9, 11)], "ranges 0-8 and 2-4 both hold layers 2-4"),
        ([(0, 5), (9, 6)], "range 9-6 is empty"),
    ],
)
def test_case_42_ranges_must_cover_every_layer_once(ranges: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(MODEL, NODES, manual(*ranges))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "nodes", "words"),
    [
        (
            manual((0, 11), node="pc-9"),
            NODES,
            "layers 0-11: node pc-9 is not among the 3 usable nodes (pc-0, pc-1, pc-2)",
        ),
        (manual((0, 11)), [node_of("small", 2)], "of 1.40 GiB allowed"),
        (manual((0, 11), node="small"), [node_of("small", 2)], "layers 0-11 do not fit: small (CPU)"),
        (manual((0, 3), (4, 7), (8, 11)), NODES[:2], "3 manual stages need as many nodes, and 2 nodes"),
        (
            replace(SPEC, manual=(ManualRange(0, 11, device=Device.NPU),)),
            NODES,
            "none of 3 nodes has device NPU (pc-0 has CPU",
        ),
        (replace(manual((0, 11), node="pc-0"), replicas=2), NODES, "2 replicas cannot all use node pc-0"),
    ],
)
def test_manual_stages_must_have_a_place(spec: PlanSpec, nodes: list[NodeFacts], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(MODEL, nodes, spec)
    assert words in str(caught.value), str(caught.value)


def test_a_device_named_by_hand_needs_no_place_in_devices() -> None:
    nodes = [node_of("pc-0", 16, Device.NPU), node_of("pc-1")]
    spec = replace(SPEC, manual=(ManualRange(0, 3, device=Device.NPU), ManualRange(4, 11)))
    stages = make_plan(MODEL, nodes, spec).pipelines[0].stages
    assert [(stage.node, stage.device) for stage in stages] == [("pc-0", Device.NPU), ("pc-1", Device.CPU)]


def test_a_stage_without_device_never_takes_one_outside_devices() -> None:
    nodes = [node_of("pc-0", 16, Device.NPU), node_of("pc-1", 16, Device.NPU)]
    spec = replace(SPEC, manual=(ManualRange(0, 3, device=Device.NPU), ManualRange(4, 11)))
    with pytest.raises(PlanError, match="layers 4-11: none of 2 nodes has device CPU"):
        make_plan(MODEL, nodes, spec)


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.tuples(st.floats(1, 8), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=5).map(
        lambda rows: [node_of(f"pc-{at}", free, speed=speed) for at, (free, speed) in enumerate(rows)]
    ),
    cuts=st.lists(st.integers(1, 11), unique=True, max_size=3).map(sorted),
)
def test_unnamed_stages_get_the_nodes_with_the_shortest_slowest_stage(nodes: list[NodeFacts], cuts: list[int]) -> None:
    ranges = list(zip([0, *cuts], [*cuts, 12], strict=True))
    spec = manual(*((start, end - 1) for start, end in ranges))
    costs = Costs(MODEL, spec)
    sites, _ = usable_sites(nodes, spec)
    possible = [
        max(costs.stage_ms(site, *each) for site, each in zip(chosen, ranges, strict=True))
        for chosen in permutations(sites, len(ranges))
        if all(costs.fits(site, *each) for site, each in zip(chosen, ranges, strict=True))
    ]
    if not possible:
        with pytest.raises(PlanError):
            make_plan(MODEL, nodes, spec)
        return
    plan = make_plan(MODEL, nodes, spec)
    assert plan.pipelines[0].slowest_ms == pytest.approx(min(possible), abs=0.002)


def test_replicas_of_a_manual_cut_use_disjoint_nodes() -> None:
    plan = make_plan(MODEL, [*NODES, node_of("pc-3")], replace(manual((0, 5), (6, 11)), replicas=2))
    assert len({stage.node for pipeline in plan.pipelines for stage in pipeline.stages}) == 4
