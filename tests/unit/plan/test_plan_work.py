"""How blocks share the time of a token: by bytes where memory is waited for, by weights on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.manifest import ModelShape, Precision
from shoal.plan import Device, ModelFacts, NodeFacts, Plan, PlanSpec, make_plan
from shoal.plan.costs import Costs, usable_sites
from shoal.plan.facts_json import facts_from_json, facts_to_json
from shoal.plan.sticky import keep_plan

SMOLLM2 = ModelShape(
    family="llama", layers=30, hidden_size=576, heads=9, kv_heads=3, head_size=64, vocab_size=49152, max_context=8192
)
LAYER = 576 * 64 * 2 * (9 + 3) + 3 * 576 * 1536
TABLE = 49152 * 576


def sizes(precision: Precision) -> list[int]:
    """Bytes of SmolLM2's blocks: INT4 in groups of 64 with INT8 tables, or all in one precision."""
    each = {Precision.INT4: 0.5 + 2 / 64, Precision.INT8: 1.0, Precision.F16: 2.0, Precision.F32: 4.0}[precision]
    ends = 1.0 if precision is Precision.INT4 else each
    return [int(TABLE * ends), *[int(LAYER * each)] * 30, int(TABLE * ends)]


def smollm2(precision: Precision = Precision.INT4) -> ModelFacts:
    group = 64 if precision is Precision.INT4 else None
    return ModelFacts.of_sizes(SMOLLM2, sizes(precision), precision, group)


def without_weights(facts: ModelFacts) -> ModelFacts:
    """The facts as an earlier version wrote them."""
    return replace(facts, layer_weights=(), head_weights=0)


def two_nodes(device: Device) -> list[NodeFacts]:
    return [NodeFacts(f"pc-{number}", (device,), 1 << 34, 1 << 34, 1 << 34) for number in (1, 2)]


def layers_of(facts: ModelFacts, device: Device) -> list[int]:
    """Layers of each of two stages on equal nodes."""
    plan = make_plan(facts, two_nodes(device), PlanSpec(devices=(device,), stage_count=2))
    ends = [min(stage.block_end - 1, 30) for stage in plan.pipelines[0].stages]
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def test_on_cpus_a_head_of_wider_numbers_weighs_as_many_layers_as_it_has_weights() -> None:
    """Measured: the head takes as long as 7 layers, so 18 or 19 layers are even; it has as many weights as 8."""
    assert layers_of(smollm2(), Device.CPU) == [19, 11]


@pytest.mark.parametrize("device", [Device.GPU, Device.NPU])
def test_devices_that_wait_for_memory_are_cut_by_bytes(device: Device) -> None:
    """The INT8 head has the bytes of 15 layers in INT4."""
    assert layers_of(smollm2(), device) == [23, 7]


def test_with_one_precision_bytes_and_weights_agree() -> None:
    for device in (Device.CPU, Device.GPU):
        assert layers_of(smollm2(Precision.F16), device) == [19, 11]


@pytest.mark.parametrize("precision", Precision)
def test_weights_follow_from_size_and_precision(precision: Precision) -> None:
    facts = smollm2(precision)
    assert facts.layer_weights[0] == pytest.approx(LAYER, rel=0.01)
    assert facts.head_weights == TABLE


@pytest.mark.parametrize("precision", Precision)
def test_a_whole_model_takes_its_bytes_over_the_bandwidth_on_any_device(precision: Precision) -> None:
    facts = smollm2(precision)
    spec = PlanSpec(devices=(Device.CPU,))
    (site, _), _ = usable_sites(two_nodes(Device.CPU), spec)
    by_bytes = (sum(facts.layer_bytes) + facts.head_bytes) / 55e9 * 1000
    assert Costs(facts, spec).compute_ms(site, 0, 30) == pytest.approx(by_bytes)
    assert Costs(without_weights(facts), spec).compute_ms(site, 0, 30) == pytest.approx(by_bytes)


def test_memory_is_counted_in_bytes_whatever_the_time_goes_by() -> None:
    spec = PlanSpec(devices=(Device.CPU,))
    known, unknown = Costs(smollm2(), spec), Costs(without_weights(smollm2()), spec)
    assert known.memory(Device.CPU, 19, 30) == unknown.memory(Device.CPU, 19, 30)


def test_facts_of_an_earlier_version_are_read_and_move_nothing() -> None:
    """They are cut by bytes as before, keep their line to the byte, and a plan made by them stays when they grow."""
    earlier = without_weights(smollm2())
    line = facts_to_json(earlier)
    assert "weights" not in line
    assert facts_from_json(line) == earlier
    assert layers_of(earlier, Device.CPU) == [23, 7]
    nodes, spec = two_nodes(Device.CPU), PlanSpec(devices=(Device.CPU,), stage_count=2)
    plan = make_plan(earlier, nodes, spec)
    kept = keep_plan(plan, smollm2(), nodes, nodes, spec)
    assert kept.moved == ()
    assert places(kept.plan) == places(plan)


def places(plan: Plan) -> list[tuple[str, int, int]]:
    return [(stage.node, stage.block_start, stage.block_end) for stage in plan.pipelines[0].stages]


def test_facts_of_a_later_version_are_read_as_far_as_they_are_known() -> None:
    line = facts_to_json(smollm2())
    assert facts_from_json(line.replace("{", '{"experts":8,', 1)) == smollm2()


def test_layers_of_equal_size_and_unequal_weights_are_not_taken_for_equal() -> None:
    """The fourth layer is as much work as the others together, so it is alone in its stage."""
    shape = SMOLLM2.model_copy(update={"layers": 6})
    facts = ModelFacts(shape, 0, (1 << 20,) * 6, 0, (0,) * 8, None, (1, 1, 1, 6, 1, 1), 0)
    nodes = [*two_nodes(Device.CPU), NodeFacts("pc-3", (Device.CPU,), 1 << 34, 1 << 34, 1 << 34)]
    plan = make_plan(facts, nodes, PlanSpec(devices=(Device.CPU,), stage_count=3))
    assert [stage.block_end for stage in plan.pipelines[0].stages] == [4, 5, 8]


def test_as_many_numbers_of_weights_as_layers() -> None:
    with pytest.raises(ValueError, match="30 layers have as many numbers of weights, or none"):
        replace(smollm2(), layer_weights=(1, 2))
