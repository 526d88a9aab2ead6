"""Every family, from a checkpoint on the disk to logits of a chain of stages, against a transformer in plain numpy."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from shoal.manifest import Precision, read_manifest
from shoal_stage.compile import CompileOptions, compile_model
from shoal_stage.engine.chain import build_chain

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
}
IDS = [5, 17, 80, 3, 42, 9, 61, 33, 2, 90, 11]
PLAIN = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3_frequencies() -> np.ndarray:
    """Written after the description in Llama 3.1's release, branch by branch."""
    scaled = []
    for frequency in PLAIN:
        wavelength = 2 * np.pi / frequency
        if wavelength < 64 / 4.0:
            scaled.append(frequency)
        elif wavelength > 64 / 1.0:
            scaled.append(frequency / 8.0)
        else:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            scaled.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    return np.array(scaled)


def run_stages(directory, ends, prompt_length=6):
    """Logits of IDS over stages that end at `ends`: a prompt in one step, the rest token by token."""
    manifest = read_manifest(directory)
    core, requests, start = ov.Core(), [], 0
    chains = []
    for end in ends:
        chain = build_chain(directory, manifest, start, end)
        chains.append(chain)
        requests.append(core.compile_model(chain.model, "CPU", EXACT).create_infer_request())
        start = end
    logits, past = [], 0
    for step in [IDS[:prompt_length], *([token] for token in IDS[prompt_length:])]:
        count = len(step)
        inputs = {
            "input_ids": np.array([step]),
            "attention_mask": np.ones((1, past + count), np.int64),
            "position_ids": np.arange(past, past + count)[None],
            "beam_idx": np.zeros(1, np.int32),
            "logits_indices": np.arange(count),
        }
        for chain, request in zip(chains, requests, strict=True):
            output = request.infer({name: inputs[name] for name in input_names(chain)})[0]
            inputs["inputs_embeds"] = output.copy()
        logits.append(output.copy())
        past += count
    return np.concatenate(logits)


def input_names(chain):
    return [port.any_name for port in chain.model.inputs]


def compiled(tiny, tmp_path, precision=Precision.F32):
    return compile_model(tiny.path, tmp_path / f"out-{precision}", CompileOptions(precision))


@pytest.mark.parametrize(
    ("family", "changes", "frequencies"),
    [
        ("llama", {}, PLAIN),
        ("llama", {"tie_word_embeddings": True}, PLAIN),
        ("llama", {"attention_bias": True}, PLAIN),
        ("llama", {"rope_scaling": LLAMA3}, llama3_frequencies()),
        ("llama", {"rope_parameters": LLAMA3 | {"rope_theta": 10000.0}, "rope_theta": None}, llama3_frequencies()),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}, PLAIN / 4),
        ("mistral", {}, PLAIN),
        ("mistral", {"num_key_value_heads": 4}, PLAIN),
        ("qwen2", {}, PLAIN),
        ("qwen3", {"tie_word_embeddings": True}, PLAIN),
        ("qwen3", {"hidden_size": 32}, PLAIN),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) if isinstance(value, dict) else "",
)
def test_logits_of_a_hugging_face_checkpoint(make_hf, reference, tmp_path, family, changes, frequencies):
    tiny = make_hf(family, **changes)
    expected = reference(tiny.config, tiny.tensors, IDS, frequencies)
    found = run_stages(compiled(tiny, tmp_path), [2, 4])
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=0)
    assert np.abs(expected).max() > 1


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_of_a_gguf_checkpoint(make_gguf, reference, tmp_path, family):
    tiny = make_gguf(family)
    expected = reference(tiny.config, tiny.tensors, IDS, PLAIN)
    found = run_stages(compiled(tiny, tmp_path), [1, 2, 3, 4])
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=0)


def test_rope_factors_of_a_gguf_checkpoint(make_gguf, reference, tmp_path):
    factors = PLAIN / llama3_frequencies()
    tiny = make_gguf("llama", extra={"rope_freqs.weight": factors.astype(np.float32)})
    expected = reference(tiny.config, tiny.tensors, IDS, llama3_frequencies())
    np.testing.assert_allclose(run_stages(compiled(tiny, tmp_path), [4]), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [(Precision.F16, 0.02), (Precision.INT8, 0.2), (Precision.INT4, 3)]
)
def test_smaller_precisions_stay_near(make_hf, reference, tmp_path, precision, tolerance):
    tiny = make_hf("llama", rms_norm_eps=1e-3)
    expected = reference(tiny.config, tiny.tensors, IDS, PLAIN)
    found = run_stages(compiled(tiny, tmp_path, precision), [4])
    assert np.abs(found - expected).max() < tolerance
    assert np.abs(found - expected).mean() < tolerance / 4


def test_shards_and_bfloat16(make_hf, reference, tmp_path, bfloat16):
    tiny = make_hf("llama", shards=3, dtype=bfloat16)
    expected = reference(tiny.config, tiny.tensors, IDS, PLAIN)
    np.testing.assert_allclose(run_stages(compiled(tiny, tmp_path), [4]), expected, atol=2e-4, rtol=0)
