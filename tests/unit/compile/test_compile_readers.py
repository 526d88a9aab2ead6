"""Damaged, unknown and unfitting checkpoints: each a CheckpointError that says what and where, never anything else."""

from __future__ import annotations

import contextlib
import json
import math
import struct

import gguf
import gguf.gguf_writer
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import CheckpointError
from shoal.manifest import Precision
from shoal_stage.compile import describe_checkpoint
from shoal_stage.compile.blocks import block_names, build_block, storage_for
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.tokenizer import build_tokenizer


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 60, 400, 2000, 5000, -1000, -1])
def test_a_truncated_gguf_is_named(make_gguf, keep):
    path = make_gguf().path
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
        open_checkpoint(path)


@given(data=st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_corrupt_header_is_refused_or_read_but_nothing_else(make_gguf, tmp_path, data):
    source = tmp_path / "tiny.gguf"
    if not source.exists():
        make_gguf()
    raw = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 4000))] = data.draw(st.integers(0, 255))
    path = tmp_path / "corrupt.gguf"
    path.write_bytes(raw)
    with contextlib.suppress(CheckpointError):
        checkpoint = open_checkpoint(path)
        build_tokenizer(checkpoint.tokenizer, checkpoint.architecture.vocab_size)


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_corrupt_safetensors_file_is_refused_or_read_but_nothing_else(make_hf, tmp_path, data):
    """Bytes of its header are changed, entries of it replaced, or its end is missing."""
    weights, sound = tmp_path / "hf/model.safetensors", tmp_path / "sound"
    if not sound.exists():
        make_hf()
        sound.write_bytes(weights.read_bytes())
    raw = bytearray(sound.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    match data.draw(st.sampled_from(["bytes", "entries", "end"])):
        case "bytes":
            for _ in range(data.draw(st.integers(1, 4))):
                raw[data.draw(st.integers(0, length + 7))] = data.draw(st.integers(0, 255))
        case "entries":
            header = json.loads(raw[8 : 8 + length])
            name = data.draw(st.sampled_from(sorted(header)))
            odd = st.integers(-(2**70), 2**70) | st.text(max_size=4) | st.none() | st.lists(st.integers(-1, 2**64))
            header[name] = data.draw(
                odd
                | st.fixed_dictionaries(
                    {
                        "dtype": st.sampled_from(["F32", "F16", "I64", "F8_E4M3", "X"]) | odd,
                        "shape": st.lists(st.integers(-1, 2**64), max_size=3) | odd,
                        "data_offsets": st.lists(st.integers(-1, 2**64), max_size=3) | odd,
                    }
                )
            )
            text = json.dumps(header).encode()
            raw[: 8 + length] = len(text).to_bytes(8, "little") + text
        case "end":
            del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    weights.write_bytes(raw)
    with contextlib.suppress(CheckpointError):
        for tensor in open_checkpoint(weights.parent).tensors.values():
            tensor.read(0, 1)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_corrupt_config_is_refused_or_read_but_nothing_else(make_hf, tmp_path, data):
    file, sound = tmp_path / "hf/config.json", tmp_path / "sound"
    if not sound.exists():
        make_hf()
        sound.write_bytes(file.read_bytes())
    config = json.loads(sound.read_text())
    odd = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)
    for _ in range(data.draw(st.integers(1, 3))):
        names = st.sampled_from([*sorted(config), "rope_scaling", "rope_parameters", "sliding_window", "layer_types"])
        config[data.draw(names)] = data.draw(
            odd | st.lists(odd, max_size=2) | st.dictionaries(st.sampled_from(["rope_type", "factor", "type"]), odd)
        )
    file.write_text(json.dumps(config))
    with contextlib.suppress(CheckpointError):
        open_checkpoint(file.parent)


def test_a_count_beyond_the_file_is_not_allocated(make_gguf):
    path = make_gguf().path
    raw = bytearray(path.read_bytes())
    raw[16:24] = struct.pack("<Q", 1 << 60)  # number of metadata values
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="not a sound GGUF file"):
        open_checkpoint(path)


def test_a_tensor_without_elements_is_refused(make_gguf):
    path = make_gguf().path
    raw = bytearray(path.read_bytes())
    at = raw.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight")
    raw[at + 4 : at + 12] = bytes(8)  # after the number of dimensions, the first of them
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"tensor 'blk\.0\.ffn_up\.weight' has the empty shape \[96, 0\]"):
        open_checkpoint(path)


@pytest.mark.parametrize("window", [float("inf"), float("nan"), 0.5])
def test_a_count_that_is_no_whole_number_is_refused(make_gguf, window):
    path = make_gguf(metadata=lambda writer: writer.add_float32("llama.attention.sliding_window", window)).path
    with pytest.raises(CheckpointError, match=r"attention\.sliding_window = .*a whole number is due"):
        open_checkpoint(path)


@pytest.mark.parametrize("key", ["rope.freq_base", "attention.layer_norm_rms_epsilon"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_number_that_would_give_no_numbers_is_refused(make_gguf, key, value):
    path = make_gguf(
        metadata=lambda writer: writer.add_key_value(f"llama.{key}", value, gguf.GGUFValueType.FLOAT32)
    ).path
    with pytest.raises(CheckpointError, match=rf"{key} = .* a number above 0 is due"):
        open_checkpoint(path)


def test_a_number_of_layers_that_no_model_has_is_refused_at_once(make_gguf):
    path = make_gguf().path
    raw = bytearray(path.read_bytes())
    at = raw.index(b"llama.block_count") + len(b"llama.block_count") + 4
    raw[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="layers = 4294967295: at most 4096"):
        open_checkpoint(path)


def test_a_chat_template_that_is_no_text_is_refused(make_gguf, make_hf):
    path = make_gguf(metadata=lambda writer: writer.add_chat_template("template!")).path
    path.write_bytes(path.read_bytes().replace(b"template!", b"templat\xff\xfe"))
    checkpoint = open_checkpoint(path)
    with pytest.raises(CheckpointError, match="chat template is not UTF-8"):
        build_tokenizer(checkpoint.tokenizer, checkpoint.architecture.vocab_size)
    tiny = make_hf("llama")
    (tiny.path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    checkpoint = open_checkpoint(tiny.path)
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not UTF-8"):
        build_tokenizer(checkpoint.tokenizer, checkpoint.architecture.vocab_size)


def test_other_files_are_no_gguf(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(path)
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "missing.gguf")


def test_an_unknown_architecture_is_named_with_the_known_ones(make_gguf, make_hf):
    with pytest.raises(CheckpointError, match=r"'mamba'.*known are llama, qwen2, qwen3"):
        open_checkpoint(make_gguf("llama", architecture="mamba").path)
    with pytest.raises(CheckpointError, match=r"'gpt_bigcode'.*known are llama, mistral, qwen2, qwen3"):
        open_checkpoint(make_hf("llama", model_type="gpt_bigcode").path)


def test_a_missing_tensor_is_named(make_gguf, make_hf):
    with pytest.raises(CheckpointError, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        open_checkpoint(make_gguf(leave_out=("blk.1.ffn_up.weight",)).path)
    tiny = make_hf("qwen2")
    (tiny.path / "config.json").write_text(json.dumps(tiny.config | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"lacks the tensor model\.layers\.2\."):
        open_checkpoint(tiny.path)


def test_a_tensor_that_the_graph_would_leave_out_is_named(make_gguf):
    extra = {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    with pytest.raises(CheckpointError, match=r"1 tensors that llama models do not use, such as blk\.0\.attn_sinks"):
        open_checkpoint(make_gguf(extra=extra).path)


def test_shapes_that_do_not_fit_are_named(make_hf, make_gguf):
    tiny = make_hf("llama")
    (tiny.path / "config.json").write_text(json.dumps(tiny.config | {"intermediate_size": 128}))
    with pytest.raises(CheckpointError, match=r"gate_proj\.weight has shape \[96, 64\].*says \[128, 64\]"):
        open_checkpoint(tiny.path)
    with pytest.raises(CheckpointError, match="4 heads over 3 KV heads"):
        open_checkpoint(make_gguf("qwen2", num_key_value_heads=3).path)


def test_an_unsupported_type_is_named(make_gguf):
    extra = {"blk.0.ffn_up.weight": np.ones((96, 64), np.int8)}
    path = make_gguf(leave_out=("blk.0.ffn_up.weight",), extra=extra).path
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight is stored as I8.*it reads BF16, F16, F32, Q4_0"):
        open_checkpoint(path)


def test_not_a_number_is_refused(make_hf):
    tiny = make_hf("llama")
    weights = tiny.path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-4:] = np.float32(np.nan).tobytes()
    weights.write_bytes(raw)
    checkpoint = open_checkpoint(tiny.path)
    storage = storage_for(checkpoint.architecture, Precision.INT8)
    with pytest.raises(CheckpointError, match="holds NaN or infinite values"):
        build_all(checkpoint, storage)


def build_all(checkpoint, storage):
    """Every block, so that every tensor is read."""
    for place in block_names(checkpoint.architecture.layers):
        build_block(checkpoint, place, storage)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "RoPE scaling 'yarn' is not known"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers should be a number, it is 'two'"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers should be a whole number, it is 2.5"),
        ({"num_hidden_layers": float("inf")}, "num_hidden_layers should be a whole number, it is inf"),
        ({"num_hidden_layers": 1 << 40}, "at most 4096 are taken"),
        ({"partial_rotary_factor": 0.5}, "rotates only 0.5"),
        ({"head_dim": 15}, "head size 15"),
    ],
)
def test_a_configuration_that_cannot_run_is_named(make_hf, changes, message):
    tiny = make_hf("llama")
    (tiny.path / "config.json").write_text(json.dumps(tiny.config | changes))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tiny.path)


def test_missing_and_damaged_files_of_a_directory_are_named(make_hf):
    tiny = make_hf("llama", shards=2, name="sharded")
    (tiny.path / "model-1.safetensors").rename(tiny.path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"lacks model-1\.safetensors"):
        open_checkpoint(tiny.path)
    raw = (tiny.path / "elsewhere").read_bytes()
    (tiny.path / "model-1.safetensors").write_bytes(raw[:-100])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        open_checkpoint(tiny.path)
    (tiny.path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        open_checkpoint(tiny.path)


def test_a_sliding_window_cuts_the_context_and_says_so(make_hf):
    cut = open_checkpoint(make_hf("mistral", sliding_window=32, name="cut").path).architecture
    assert cut.max_context == 32
    assert cut.notes == ("context cut from 128 to the sliding window of 32 tokens",)
    wide = open_checkpoint(make_hf("mistral", sliding_window=None, name="wide").path).architecture
    assert (wide.max_context, wide.notes) == (128, ())
    # Qwen2 names a window but does not use it unless told.
    unused = open_checkpoint(make_hf("qwen2", sliding_window=32, use_sliding_window=False, name="off").path)
    assert unused.architecture.max_context == 128


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_stored_types_are_read_by_rows(make_gguf, kind):
    tiny = make_gguf("qwen2", kind=kind)
    view = open_checkpoint(tiny.path).tensor("model.layers.0.mlp.gate_proj.weight")
    original = tiny.tensors["model.layers.0.mlp.gate_proj.weight"]
    exact = gguf.quants.dequantize(
        gguf.quants.quantize(original, gguf.GGMLQuantizationType[kind]), gguf.GGMLQuantizationType[kind]
    )
    np.testing.assert_array_equal(view.rows(0, 50), exact[:50])
    np.testing.assert_array_equal(view.rows(50, 96), exact[50:])
    assert np.abs(exact - original).max() < 0.1


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_read_by_rows(make_gguf, tmp_path, kind):
    """No quantiser for these at hand: random bytes of the format, read by rows and in one piece."""
    quantised = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quantised]
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 255, (64, size), np.uint8)
    raw[:, -2:] = np.float16(0.01).tobytes()[0], 0x20  # the scale of Q6_K, finite
    raw[:, :4] = np.frombuffer(np.array([0.01, 0.02], np.float16).tobytes(), np.uint8)
    path = tmp_path / "k.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from shoal_stage.compile.readers.gguf import tensor_rows
    from shoal_stage.compile.readers.gguf_header import read_header

    data = memoryview(path.read_bytes())
    tensor = read_header(data, path).tensors["blk.0.attn_q.weight"]
    assert tensor.shape == (64, block)
    rows = tensor_rows(data, tensor)
    whole = gguf.quants.dequantize(raw, quantised)
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(rows(0, 64), whole)
    np.testing.assert_array_equal(rows(10, 20), whole[10:20])


def test_sizes_are_known_before_compiling(make_gguf):
    tiny = make_gguf("llama", kind="Q8_0", tie_word_embeddings=True)
    facts = describe_checkpoint(tiny.path, Precision.INT8)
    assert len(facts.block_bytes) == 4
    assert facts.block_bytes[0] == 96 * 64 + 2 * 96
    assert facts.block_bytes[3] == facts.block_bytes[0] + 4 * 64
    assert facts.shape.max_context == 128
