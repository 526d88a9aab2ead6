"""make_plan: what always holds of a plan, and what a refusal says."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.errors import PlanError, UsageError
from shoal.manifest import ModelShape
from shoal.plan import (
    Device,
    ManualRange,
    MemorySum,
    ModelFacts,
    NodeFacts,
    Plan,
    PlanSpec,
    make_plan,
    split_machine,
)
from shoal.plan.costs import Costs, memory_limit
from shoal.plan.devices import GIB, MIB, PROFILES, KvElement

SPEC = PlanSpec(devices=(Device.GPU, Device.CPU), streams=2, max_context=1024)


def model_of(layers: int = 8, layer_mib: int = 400, end_mib: int = 300, tensor_gib: float = 0.1) -> ModelFacts:
    return ModelFacts(
        shape=ModelShape(
            family="llama",
            layers=layers,
            hidden_size=1024,
            heads=16,
            kv_heads=8,
            head_size=64,
            vocab_size=32000,
            max_context=8192,
        ),
        embed_bytes=end_mib * MIB,
        layer_bytes=(layer_mib * MIB,) * layers,
        head_bytes=end_mib * MIB,
        largest_tensors=(int(tensor_gib * GIB),) * (layers + 2),
    )


def node_of(name: str, free_gib: float = 16, *devices: Device, **more: object) -> NodeFacts:
    free = int(free_gib * GIB)
    return replace(NodeFacts(name, devices or (Device.GPU, Device.CPU), 2 * free, 2 * free, free), **more)  # type: ignore[arg-type]


NODES = st.lists(
    st.tuples(
        st.floats(0.5, 24),
        st.sampled_from([(Device.GPU, Device.CPU), (Device.CPU,), (Device.NPU,)]),
        st.sampled_from([0.5, 1.0, 2.0]),
        st.none() | st.floats(0.5, 8),
    ),
    min_size=2,
    max_size=7,
).map(
    lambda rows: [
        node_of(
            f"pc-{at}",
            free,
            *devices,
            speeds=dict.fromkeys(devices, speed),
            memory_cap=None if cap is None else int(cap * GIB),
        )
        for at, (free, devices, speed, cap) in enumerate(rows)
    ]
)
MODELS = st.builds(model_of, layers=st.integers(1, 16), layer_mib=st.integers(20, 600), end_mib=st.integers(10, 500))
SPECS = st.builds(
    PlanSpec,
    devices=st.just((Device.GPU, Device.CPU)),
    replicas=st.sampled_from([1, 1, 2]),
    stage_count=st.none() | st.integers(1, 3),
    max_memory_fraction=st.floats(0.3, 0.95),
    spare_nodes=st.integers(0, 2),
    streams=st.integers(1, 16),
    max_context=st.integers(128, 8192),
    kv=st.none() | st.sampled_from(list(KvElement)),
)


def planned(model: ModelFacts, nodes: list[NodeFacts], spec: PlanSpec) -> Plan | None:
    """The plan, or None when there is none: then the refusal is one line with numbers."""
    refusal = ""
    try:
        return make_plan(model, nodes, spec)
    except PlanError as error:
        refusal = str(error)
    assert re.search(r"\d", refusal), f"a refusal without a number: {refusal}"
    assert "\n" not in refusal
    return None


@settings(max_examples=80, deadline=None)
@given(model=MODELS, nodes=NODES, spec=SPECS)
def test_case_35_a_plan_never_exceeds_a_node(model: ModelFacts, nodes: list[NodeFacts], spec: PlanSpec) -> None:
    """exo PR#2227: no node gets more than its free memory allows at the peak, and every block is served once."""
    plan = planned(model, nodes, spec)
    assume(plan is not None)
    assert plan is not None
    facts = {node.name: node for node in nodes}
    assert len(plan.pipelines) == spec.replicas
    used = [stage.node for pipeline in plan.pipelines for stage in pipeline.stages]
    assert len(used) == len(set(used)), "a node holds two stages"
    assert not set(used) & set(plan.spares)
    for pipeline in plan.pipelines:
        stages = pipeline.stages
        assert spec.stage_count in (None, len(stages))
        assert stages[0].block_start == 0
        assert stages[-1].block_end == model.shape.layers + 2
        assert all(before.block_end == after.block_start for before, after in pairwise(stages))
        assert all(stage.block_end - stage.block_start >= 1 for stage in stages)
        # The embedding comes with a layer, and so does the head.
        assert stages[0].block_end >= 2
        assert stages[-1].block_start <= model.shape.layers
        for stage in stages:
            node = facts[stage.node]
            assert stage.device in node.devices
            assert stage.device in spec.devices
            assert stage.limit == memory_limit(node, spec) <= spec.max_memory_fraction * node.memory_free
            assert stage.memory.total <= stage.limit
            blocks = (model.embed_bytes, *model.layer_bytes, model.head_bytes)[stage.block_start : stage.block_end]
            assert stage.memory.weights == sum(blocks)
            factor = PROFILES[stage.device].load_factor
            assert stage.memory.total >= int(stage.memory.weights * factor)
            assert stage.memory.total >= stage.memory.weights + plan.kv_tokens * stage.kv_bytes_per_token
    assert plan.kv_tokens == spec.streams * (spec.max_context or 0)
    assert Plan.model_validate_json(plan.model_dump_json(by_alias=True)) == plan


@settings(max_examples=40, deadline=None)
@given(model=MODELS, nodes=NODES, spec=SPECS, seed=st.randoms(use_true_random=False))
def test_order_of_nodes_does_not_matter(
    model: ModelFacts, nodes: list[NodeFacts], spec: PlanSpec, seed: object
) -> None:
    shuffled = list(nodes)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert planned(model, nodes, spec) == planned(model, shuffled, spec)


@settings(max_examples=40, deadline=None)
@given(model=MODELS, nodes=NODES, spec=SPECS, at=st.integers(0, 6), more=st.floats(0.1, 16))
def test_more_memory_never_hurts(
    model: ModelFacts, nodes: list[NodeFacts], spec: PlanSpec, at: int, more: float
) -> None:
    plan = planned(model, nodes, spec)
    assume(plan is not None)
    assert plan is not None
    grown = list(nodes)
    node = grown[at % len(grown)]
    extra = int(more * GIB)
    grown[at % len(grown)] = replace(
        node,
        memory_free=node.memory_free + extra,
        memory_allocatable=node.memory_allocatable + extra,
        memory_total=node.memory_total + extra,
    )
    assert planned(model, grown, spec) is not None
    another = [*nodes, node_of("pc-new", 8)]
    assert planned(model, another, spec) is not None


@settings(max_examples=40, deadline=None)
@given(model=MODELS, nodes=NODES, spec=SPECS)
def test_fits_one_node_is_said_exactly_when_it_does(model: ModelFacts, nodes: list[NodeFacts], spec: PlanSpec) -> None:
    plan = planned(model, nodes, spec)
    assume(plan is not None)
    assert plan is not None
    one = replace(spec, replicas=1, stage_count=1, spare_nodes=0)
    fits = any(planned(model, [node], one) is not None for node in nodes)
    assert plan.fits_one_node == fits
    assert any(text.startswith("FitsOneNode") for text in plan.advice) == fits


def test_fits_one_node_advice_has_the_numbers_of_both_ways() -> None:
    plan = make_plan(model_of(), [node_of(f"pc-{at}", 24) for at in range(3)], replace(SPEC, stage_count=3))
    (advice,) = plan.advice
    assert "replicas: 3 with stages.count: 1" in advice
    assert len(re.findall(r"\d+ tokens/s|to one and \d+|and \d+ to 3", advice)) == 3
    assert "GiB" in advice


def test_shares_of_one_machine_are_no_reason_for_replicas() -> None:
    plan = make_plan(model_of(), split_machine(node_of("local", 64), 2), replace(SPEC, stage_count=2))
    assert plan.fits_one_node
    assert "replicas" not in " ".join(plan.advice)


def test_a_machine_is_divided_without_remainder() -> None:
    whole = node_of("local", 10, speeds={Device.CPU: 2.0}, memory_cap=9 * GIB)
    parts = split_machine(whole, 3)
    assert [part.name for part in parts] == ["local-0", "local-1", "local-2"]
    assert sum(part.memory_free for part in parts) <= whole.memory_free
    assert sum(part.memory_cap or 0 for part in parts) <= 9 * GIB
    assert {part.speeds[Device.CPU] for part in parts} == {2.0 / 3}
    assert {part.host for part in parts} == {"local"}
    assert [part.name for part in split_machine(whole, 1)] == ["local"]


def test_a_small_model_stays_on_one_node_when_hops_cost_more() -> None:
    """A hop of a slow link takes longer than splitting saves."""
    nodes = [node_of(f"pc-{at}", 16, link_ms=30.0) for at in range(3)]
    plan = make_plan(model_of(4, 100), nodes, SPEC)
    assert len(plan.pipelines[0].stages) == 1
    assert plan.spares == ("pc-1", "pc-2")


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_stage_count_is_obeyed(count: int) -> None:
    plan = make_plan(model_of(), [node_of(f"pc-{at}") for at in range(5)], replace(SPEC, stage_count=count))
    assert len(plan.pipelines[0].stages) == count
    assert any(f"asks for {count} stage" in reason for reason in plan.reasons)


@pytest.mark.parametrize(
    ("spec", "nodes", "words"),
    [
        (replace(SPEC, stage_count=4), 3, ["1 pipeline of 4 stages need 4 nodes, 3 can be used"]),
        (replace(SPEC, stage_count=2, replicas=2), 3, ["2 pipelines of 2 stages need 4 nodes, 3 can be used"]),
        (replace(SPEC, stage_count=9), 12, ["stages.count is 9", "8 layers"]),
        (
            replace(SPEC, node_selector={"shoal.dev/platform": "lunar-lake"}),
            1,
            ["pc-0 has no label shoal.dev/platform"],
        ),
        (replace(SPEC, devices=(Device.NPU,)), 2, ["pc-1 has GPU, CPU, spec.devices allows NPU"]),
        (replace(SPEC, max_memory_fraction=0.1), 2, ["at most", "of 1.60 GiB allowed", "pc-0", "pc-1"]),
    ],
)
def test_refusals_say_what_is_missing(spec: PlanSpec, nodes: int, words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(model_of(), [node_of(f"pc-{at}") for at in range(nodes)], spec)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_case_36_the_peak_counts_not_what_stays() -> None:
    """exo#97: memory doubles on load. A stage that fits only once it is loaded is refused, with its sum."""
    model = model_of(8, 1024, 0)  # 8 GiB of weights; on a GPU 17.6 GiB while loading
    node = node_of("pc-0", 24, Device.GPU)
    with pytest.raises(PlanError) as caught:
        make_plan(model, [node], SPEC)
    assert "weights 8.00 GiB + load peak 9.60 GiB + runtime 0.75 GiB" in str(caught.value)
    assert "18.35 GiB" in str(caught.value)
    assert make_plan(model, [node_of("pc-0", 27, Device.GPU)], SPEC).fits_one_node


@pytest.mark.parametrize(("device", "factor"), [(Device.GPU, 2.2), (Device.CPU, 1.3)])
def test_case_37_the_load_peak_depends_on_the_device(device: Device, factor: float) -> None:
    """openvino.genai#1636: 16 GB at the peak for 5.7 GB of model on the GPU; case 39 is the same factor."""
    memory = Costs(model_of(8, 1024, 0), SPEC).memory(device, 0, 8)
    assert memory.total == pytest.approx(8 * GIB * factor + PROFILES[device].runtime_bytes, rel=1e-6)


def test_case_39_a_gpu_stage_is_planned_smaller_than_a_cpu_stage() -> None:
    """openvino#28009: the same memory holds fewer layers on the integrated GPU than on the CPU."""
    costs = Costs(model_of(40, 400, 0), SPEC)
    held = {
        device: max(end for end in range(1, 40) if costs.memory(device, 0, end).total <= 10 * GIB)
        for device in (Device.GPU, Device.CPU)
    }
    assert held[Device.GPU] < held[Device.CPU]


def test_case_40_the_default_share_of_memory_is_at_most_seven_tenths() -> None:
    """llama.cpp#15055: it crashes when tensors take more than about 75 % of the RAM."""
    assert PlanSpec(devices=(Device.CPU,)).max_memory_fraction <= 0.7


def test_case_41_a_node_can_be_capped_by_hand() -> None:
    """beowulf-ai-cluster#2: the main node swaps. A cap for it moves layers away, a manual range does too."""
    nodes = [node_of("main", 16), node_of("pc-1", 16)]
    free = make_plan(model_of(), nodes, replace(SPEC, stage_count=2))
    capped = make_plan(model_of(), nodes, replace(SPEC, stage_count=2, node_limits={"main": 3 * GIB}))
    by_hand = make_plan(
        model_of(), nodes, replace(SPEC, manual=(ManualRange(0, 0, node="main"), ManualRange(1, 7, node="pc-1")))
    )

    def layers_of_main(plan: Plan) -> int:
        (stage,) = [stage for stage in plan.pipelines[0].stages if stage.node == "main"]
        return stage.block_end - stage.block_start

    assert layers_of_main(capped) < layers_of_main(free)
    assert layers_of_main(by_hand) == 2
    assert any("main" in reason and "a cap of this node" in reason for reason in capped.reasons)


def test_case_p4_one_tensor_above_4_gib_is_refused_on_a_gpu() -> None:
    """The paper's crash: one allocation above 4 GiB on the Lunar Lake GPU. The planner says so instead."""
    model = model_of(4, 500, 4500, tensor_gib=4.4)
    with pytest.raises(PlanError, match=r"a tensor of 4\.40 GiB is more than the device allocates in one piece"):
        make_plan(model, [node_of("pc-0", 128, Device.GPU)], SPEC)
    plan = make_plan(model, [node_of("pc-0", 128, Device.CPU)], SPEC)
    assert plan.pipelines[0].stages[0].device is Device.CPU


def test_a_second_choice_of_device_is_said_not_hidden() -> None:
    nodes = [node_of("pc-0", 16, Device.CPU), node_of("pc-1", 16)]
    plan = make_plan(model_of(), nodes, replace(SPEC, stage_count=2))
    assert "pc-0 has no GPU: its stage uses CPU, which spec.devices allows" in plan.reasons
    with pytest.raises(PlanError, match=r"pc-0 has CPU, spec\.devices allows GPU"):
        make_plan(model_of(), nodes, replace(SPEC, devices=(Device.GPU,), stage_count=2))


def test_context_beyond_the_model_is_refused_with_both_sizes() -> None:
    with pytest.raises(UsageError, match=r"maxContext is 9000 tokens, the model was made for 8192"):
        make_plan(model_of(), [node_of("pc-0")], replace(SPEC, max_context=9000))


def test_context_defaults_to_what_the_model_was_made_for_at_most_4096() -> None:
    spec = replace(SPEC, max_context=None)
    assert make_plan(model_of(), [node_of("pc-0", 64)], spec).max_context == 4096
    short = replace(model_of(), shape=model_of().shape.model_copy(update={"max_context": 2048}))
    assert make_plan(short, [node_of("pc-0", 64)], spec).max_context == 2048


def test_streams_and_context_are_checked_against_memory() -> None:
    """Many long sequences need more KV than the node has: the refusal shows the KV term."""
    spec = replace(SPEC, streams=64, max_context=8192)
    with pytest.raises(PlanError, match=r"KV \d+\.\d+ GiB"):
        make_plan(model_of(), [node_of("pc-0", 16)], spec)


@pytest.mark.parametrize(("element", "bytes_"), [(KvElement.F32, 512), (KvElement.F16, 256), (KvElement.U8, 80 + 72)])
def test_kv_bytes_of_a_head(element: KvElement, bytes_: int) -> None:
    """Head size 64: U8 as OpenVINO's CPU pages hold it, 40 rows of keys for 32 tokens and 8 bytes beside each value."""
    assert element.bytes_per_head(64) == bytes_


def test_spares_are_left_free_when_possible_and_missed_aloud_when_not() -> None:
    nodes = [node_of(f"pc-{at}", 12) for at in range(4)]
    plan = make_plan(model_of(), nodes, replace(SPEC, spare_nodes=2))
    assert len(plan.pipelines[0].stages) == 2
    assert len(plan.spares) == 2
    tight = [node_of(f"pc-{at}", 5) for at in range(4)]
    plan = make_plan(model_of(), tight, replace(SPEC, spare_nodes=2))
    assert any("sparePods is 2" in reason for reason in plan.reasons)
    assert any("asks for 2 spare nodes" in text for text in plan.advice)


def test_a_node_too_small_for_any_stage_is_no_spare() -> None:
    plan = make_plan(model_of(), [node_of("pc-0", 24), node_of("tiny", 0.5)], SPEC)
    assert plan.spares == ()


def test_nothing_and_twins_are_refused() -> None:
    with pytest.raises(PlanError, match="0 nodes"):
        make_plan(model_of(), [], SPEC)
    with pytest.raises(UsageError, match="pc-0 is listed 2 times"):
        make_plan(model_of(), [node_of("pc-0"), node_of("pc-0")], SPEC)


def test_peak_is_the_larger_of_load_and_kv() -> None:
    assert MemorySum(weights=10, load_peak=5, kv=3, runtime=1).total == 16
    assert MemorySum(weights=10, load_peak=3, kv=5, runtime=1).total == 16


def test_blocks_in_words() -> None:
    plan = make_plan(model_of(8), [node_of(f"pc-{at}") for at in range(3)], replace(SPEC, stage_count=3))
    first, middle, last = (stage.describe_blocks(8) for stage in plan.pipelines[0].stages)
    assert first.startswith("embed, layer")
    assert re.fullmatch(r"layers \d+-\d+", middle)
    assert re.fullmatch(r"layers? \d+(-7)?, head", last)
