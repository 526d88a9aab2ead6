"""A checkpoint in 4 bits keeps its own numbers: nothing is rounded a second time."""

from __future__ import annotations

import gguf
import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.manifest import Precision, read_manifest
from shoal.plan.document import Device
from shoal_stage.compile import CompileOptions, compile_model, describe_checkpoint
from shoal_stage.compile.blocks import Storage, keeping_stored
from shoal_stage.compile.quantise import Grid, Scheme, keep
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.readers.checkpoint import Stored, TensorView
from shoal_stage.compile.readers.gguf import stored_numbers, tensor_rows
from shoal_stage.compile.readers.gguf_header import read_header
from shoal_stage.engine.chain import build_chain
from shoal_stage.engine.merge import merge_small_products
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings

KEPT = CompileOptions(keep_stored=True)
WITH_ZERO_POINTS, WITHOUT = Scheme(4, 32, kept=True, zero_points=True), Scheme(4, 32, kept=True)
STEPS = st.one_of(st.just(0.0), st.floats(2.0**-14, 4.0, width=16), st.floats(-4.0, -(2.0**-14), width=16))
LOWS = st.one_of(st.just(0.0), st.floats(-60.0, 60.0, width=16))


@given(
    st.lists(st.tuples(STEPS, LOWS), min_size=2, max_size=2),
    st.lists(st.integers(0, 15), min_size=64, max_size=64),
)
@settings(max_examples=100, deadline=None)
def test_what_lies_on_a_grid_stays_there(groups, numbers):
    step = np.array([each[0] for each in groups], np.float32).reshape(1, 2, 1)
    low = np.array([each[1] for each in groups], np.float32).reshape(1, 2, 1)
    given_numbers = np.array(numbers, np.float32).reshape(1, 2, 32)
    values = (low + given_numbers * step).reshape(1, 64)
    kept = keep(values, Grid(step, low), WITH_ZERO_POINTS)
    assert kept.zero_points is not None
    assert ((kept.numbers >= 0) & (kept.numbers <= 15)).all()
    # The zero point is rounded to f16: 11 bits of the distance from 0 to the lowest value.
    allowed = np.abs(low) * 2.0**-10 + 1e-6
    assert (np.abs(kept.restore().reshape(1, 2, 32) - values.reshape(1, 2, 32)) <= allowed).all()
    if (step != 0).all() and (np.abs(low) < 1000 * np.abs(step)).all():
        np.testing.assert_array_equal(kept.numbers, given_numbers)


@given(st.lists(STEPS, min_size=2, max_size=2), st.lists(st.integers(0, 15), min_size=64, max_size=64))
@settings(max_examples=60, deadline=None)
def test_a_symmetric_grid_needs_no_zero_points(steps, numbers):
    step = np.array(steps, np.float32).reshape(1, 2, 1)
    values = ((np.array(numbers, np.float32).reshape(1, 2, 32) - 8) * step).reshape(1, 64)
    kept = keep(values, Grid(step, -8 * step), WITHOUT)
    assert kept.zero_points is None
    np.testing.assert_array_equal(kept.restore(), values)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_the_numbers_of_every_4_bit_format_are_found(tmp_path, kind):
    quantised = gguf.GGMLQuantizationType[kind]
    rng = np.random.default_rng(3)
    if kind == "Q4_K":  # no quantiser for it at hand: random bytes with finite scales
        raw = rng.integers(0, 255, (64, gguf.GGML_QUANT_SIZES[quantised][1]), np.uint8)
        raw[:, :4] = np.frombuffer(np.array([0.01, 0.02], np.float16).tobytes(), np.uint8)
    else:
        raw = gguf.quants.quantize(rng.normal(0, 1, (64, 64)).astype(np.float32), quantised)
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = memoryview(path.read_bytes())
    tensor = read_header(data, path).tensors["blk.0.attn_q.weight"]
    order = np.arange(64)[::-1]
    stored = stored_numbers(data, tensor, order)
    assert stored is not None
    assert stored.zero_points == (kind != "Q4_0")
    values = tensor_rows(data, tensor, order)(8, 40)
    scheme = WITH_ZERO_POINTS if stored.zero_points else WITHOUT
    restored = keep(values, stored.grid(8, 40), scheme).restore()
    assert np.abs(restored - values).max() <= 2e-3 * np.abs(values).max()


def outputs(model: ov.Model) -> np.ndarray:
    """Logits of a short prompt, of a chain that holds the whole model."""
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    known = {
        "input_ids": np.array([[5, 80, 33, 2]]),
        "attention_mask": np.ones((1, 4), np.int64),
        "position_ids": np.arange(4)[None],
        "beam_idx": np.zeros(1, np.int32),
        "logits_indices": np.arange(4),
    }
    result = request.infer({port.any_name: known[port.any_name] for port in model.inputs})
    return np.array(result[0])


def test_a_kept_model_computes_what_its_file_holds(make_gguf, tmp_path):
    tiny = make_gguf("llama", kind="Q4_1")
    exact = compile_model(tiny.path, tmp_path / "f32", CompileOptions(Precision.F32))
    kept = compile_model(tiny.path, tmp_path / "kept", KEPT)
    manifest = read_manifest(kept)
    assert (manifest.keeps_stored, manifest.group_size) == (True, 32)
    # What was compiled before there was the field keeps its digest.
    assert b"keeps_stored" not in read_manifest(exact).canonical_json()
    assert compile_model(tiny.path, kept, KEPT) == kept
    with pytest.raises(UsageError, match="with other options"):
        compile_model(tiny.path, kept, CompileOptions(Precision.INT4))

    facts = describe_checkpoint(tiny.path, keep_stored=True)
    assert (facts.group_size, facts.zero_points) == (32, True)
    for block, estimated in zip(manifest.blocks, facts.block_bytes, strict=True):
        assert 0.9 < estimated / block.weight_bytes <= 1.0, block.name

    chains = [build_chain(each, read_manifest(each), 0, len(manifest.blocks)).model for each in (exact, kept)]
    right, ours = (outputs(model) for model in chains)
    # What INT8 costs in the embedding and the head; rounding the layers once more would cost 1.7.
    assert np.abs(ours - right).max() < 0.1
    merged = chains[1]
    assert merge_small_products(merged) > 0
    np.testing.assert_array_equal(outputs(merged), ours)

    wanted = EngineSettings(sequences=1, max_context=32, device=Device.GPU)
    with pytest.raises(UsageError, match="a form that only CPUs are known to take"):
        open_engine(EngineKind.PAGED, kept, manifest, 0, len(manifest.blocks), wanted)


def test_a_file_in_other_bits_is_rounded_as_ever(make_gguf):
    facts = describe_checkpoint(make_gguf("llama", kind="Q8_0").path, keep_stored=True)
    assert facts == describe_checkpoint(make_gguf("llama", kind="Q8_0", name="other.gguf").path)
    assert not facts.zero_points


@pytest.mark.parametrize("options", [CompileOptions(Precision.INT8, keep_stored=True), CompileOptions(group_size=32)])
def test_keeping_goes_with_int4_and_no_groups(make_gguf, tmp_path, options):
    keeping = CompileOptions(options.precision, options.group_size, keep_stored=True)
    with pytest.raises(UsageError, match="kept with INT4 and without a group size"):
        compile_model(make_gguf("llama", kind="Q4_1").path, tmp_path / "model", keeping)


def matrix(name: str, rows: int, *, four_bits: bool, zero_points: bool = True) -> TensorView:
    def never(start: int, end: int) -> Grid:
        raise AssertionError((start, end))

    stored = Stored(zero_points, never) if four_bits else None
    return TensorView(name, "file", (rows, 64), 0, lambda start, end: np.zeros((end - start, 64), np.float32), stored)


def test_what_a_file_holds_in_more_bits_gets_int8():
    storage = Storage(Precision.INT4, Scheme(4, 64), Scheme(8, None))
    views = [
        matrix("model.embed_tokens.weight", 500, four_bits=False),
        matrix("model.layers.0.mlp.up_proj.weight", 96, four_bits=True),
        matrix("model.layers.0.mlp.down_proj.weight", 64, four_bits=False),
        matrix("model.layers.0.self_attn.q_proj.weight", 32, four_bits=True, zero_points=False),
    ]
    kept = keeping_stored(storage, {view.name: view for view in views})
    assert kept.of_layer("model.layers.0.mlp.up_proj.weight") == WITH_ZERO_POINTS
    assert kept.of_layer("model.layers.0.mlp.down_proj.weight") == Scheme(8, None)
    assert kept.of_layer("model.layers.0.self_attn.q_proj.weight") == WITHOUT
    assert kept.ends == storage.ends
    # Less than half of it in 4 bits: the file's author had another precision in mind.
    other = {view.name: view for view in (*views, matrix("model.layers.1.mlp.up_proj.weight", 96, four_bits=False))}
    assert keeping_stored(storage, other) == storage


def test_other_formats_have_no_numbers_of_4_bits(make_gguf):
    checkpoint = open_checkpoint(make_gguf("llama", kind="Q8_0").path)
    assert all(view.stored is None for view in checkpoint.tensors.values())
