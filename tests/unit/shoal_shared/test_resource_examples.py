"""The examples: they load, they plan, and they are what the documentation says they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.manifest import ModelShape
from shoal.plan import Device, ModelFacts, NodeFacts, make_plan, split_machine
from shoal.plan.devices import GIB, MIB
from shoal.plan.estimate import compile_memory_estimate
from shoal.resource import load_nodes, load_sharded_model, node_facts_of, plan_spec_of

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def llama_of(layers: int, hidden: int, heads: int, intermediate: int) -> ModelFacts:
    """The shape of a Llama 3.1 model in INT4, with its tables in INT8."""
    head_size, kv_heads, vocabulary = 128, 8, 128256
    weights = hidden * head_size * 2 * (heads + kv_heads) + 3 * hidden * intermediate
    layer = int(weights * (0.5 + 2 / 128))  # a 16-bit scale for 128 columns
    table = vocabulary * hidden
    return ModelFacts(
        shape=ModelShape(
            family="llama",
            layers=layers,
            hidden_size=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            vocab_size=vocabulary,
            max_context=131072,
        ),
        embed_bytes=table,
        layer_bytes=(layer,) * layers,
        head_bytes=table,
        largest_tensors=(table, *(layer // 3,) * layers, table),
    )


LLAMA_8B = llama_of(32, 4096, 32, 14336)
LLAMA_70B = llama_of(80, 8192, 64, 28672)


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} >= {"smollm2.yaml", "llama-3.1-8b.yaml", "nodes.yaml"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    if path.name.startswith("nodes"):
        assert load_nodes(path).nodes
    else:
        assert load_sharded_model(path).served_names


def test_the_demo_is_two_stages_on_a_machine_with_a_cpu_only() -> None:
    model = load_sharded_model(EXAMPLES / "smollm2.yaml")
    assert model.served_names == ("smollm2",)
    source = model.spec.model.source
    assert source is not None
    assert source.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    shape = ModelShape(
        family="llama",
        layers=30,
        hidden_size=576,
        heads=9,
        kv_heads=3,
        head_size=64,
        vocab_size=49152,
        max_context=8192,
    )
    facts = ModelFacts(shape, 27 * MIB, (2 * MIB,) * 30, 27 * MIB, (27 * MIB, *(MIB,) * 30, 27 * MIB))
    machine = NodeFacts("local", (Device.CPU,), 16 * GIB, 16 * GIB, 8 * GIB)
    plan = make_plan(facts, split_machine(machine, 2), plan_spec_of(model.spec))
    assert [stage.device for stage in plan.pipelines[0].stages] == [Device.CPU, Device.CPU]


def test_llama_8b_is_planned_over_five_lunar_lake_pcs() -> None:
    spec = plan_spec_of(load_sharded_model(EXAMPLES / "llama-3.1-8b.yaml").spec)
    nodes = node_facts_of(load_nodes(EXAMPLES / "nodes.yaml"))
    assert len({node.memory_free for node in nodes}) == len(nodes), "five PCs of different memory"
    plan = make_plan(LLAMA_8B, nodes, spec)
    (pipeline,) = plan.pipelines
    assert 2 <= len(pipeline.stages) <= 4
    assert len(plan.spares) >= 1
    assert all(stage.device is Device.GPU for stage in pipeline.stages)
    assert plan.fits_one_node


@pytest.mark.parametrize(("model", "measured"), [(LLAMA_8B, 0.82e9), (LLAMA_70B, 1.22e9)])
def test_the_compilers_memory_is_estimated_from_its_largest_block(model: ModelFacts, measured: float) -> None:
    """Never below the measured peak, and not far above it."""
    assert measured <= compile_memory_estimate(model) <= 1.3 * measured
    # Another layer of the same size changes nothing.
    deeper = ModelFacts(
        model.shape.model_copy(update={"layers": model.shape.layers + 1}),
        model.embed_bytes,
        (*model.layer_bytes, model.layer_bytes[0]),
        model.head_bytes,
        (*model.largest_tensors, 0),
    )
    assert compile_memory_estimate(deeper) == compile_memory_estimate(model)
