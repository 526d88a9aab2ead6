"""Tiny checkpoints with random weights, as Hugging Face directories and as GGUF files, and a transformer in numpy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 96


@dataclass(slots=True)
class Tiny:
    """A checkpoint on the disk and what is in it: `config` as in config.json, tensors by their Hugging Face names."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, NDArray[np.float32]] = field(repr=False)


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model of the family."""
    config: dict[str, Any] = {
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    return config | changes


def tensors_of(config: dict[str, Any], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights of the size that keeps activations near one."""
    rng = np.random.default_rng(seed)
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    wide, narrow = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    family = config["model_type"]

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(count: int, around: float) -> NDArray[np.float32]:
        return (around + 0.3 * rng.standard_normal(count)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden) * 4}
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}."
        attention = f"{layer}self_attn."
        tensors |= {
            f"{layer}input_layernorm.weight": vector(hidden, 1.0),
            f"{attention}q_proj.weight": matrix(wide, hidden) * 2,
            f"{attention}k_proj.weight": matrix(narrow, hidden) * 2,
            f"{attention}v_proj.weight": matrix(narrow, hidden),
            f"{attention}o_proj.weight": matrix(hidden, wide),
            f"{layer}post_attention_layernorm.weight": vector(hidden, 1.0),
            f"{layer}mlp.gate_proj.weight": matrix(ffn, hidden),
            f"{layer}mlp.up_proj.weight": matrix(ffn, hidden),
            f"{layer}mlp.down_proj.weight": matrix(hidden, ffn),
        }
        if family == "qwen2" or config.get("attention_bias"):
            counts = {"q": wide, "k": narrow, "v": narrow}
            tensors |= {f"{attention}{x}_proj.bias": vector(count, 0.0) for x, count in counts.items()}
        if config.get("attention_bias"):
            tensors[f"{attention}o_proj.bias"] = vector(hidden, 0.0)
        if family == "qwen3":
            tensors |= {f"{attention}{x}_norm.weight": vector(head, 1.0) for x in "qk"}
    tensors["model.norm.weight"] = vector(hidden, 1.0)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return tensors


def vocabulary() -> list[str]:
    """<s>, </s>, then printable characters and one merged pair: a byte-level vocabulary of VOCAB tokens."""
    return ["<s>", "</s>", "Ġ", *(chr(code) for code in range(33, 33 + VOCAB - 4)), "ab"]


def tokenizer_json() -> str:
    """A byte-level tokenizer.json over `vocabulary`."""
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(vocabulary())}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


MakeHuggingFace = Callable[..., Tiny]
MakeGguf = Callable[..., Tiny]


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """What no test looks at and every block waits for: that bytes are on the disk before the power fails."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture
def make_hf(tmp_path: Path) -> MakeHuggingFace:
    """See `write_hf`; in the test's own folder."""
    return partial(write_hf, tmp_path)


@pytest.fixture(scope="session")
def make_hf_in() -> MakeHuggingFace:
    """See `write_hf`; for what several tests share."""
    return write_hf


def write_hf(
    folder: Path, family: str = "llama", *, shards: int = 1, dtype: Any = np.float32, name: str = "hf", **changes: Any
) -> Tiny:
    """A Hugging Face directory; `shards` files with an index, weights as `dtype`."""
    directory = folder / name
    directory.mkdir()
    config = config_of(family, **changes)
    tensors = {key: value.astype(dtype) for key, value in tensors_of(config).items()}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(tokenizer_json())
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
    else:
        where = {key: f"model-{number % shards}.safetensors" for number, key in enumerate(tensors)}
        for file in sorted(set(where.values())):
            save_file({key: tensors[key] for key in tensors if where[key] == file}, directory / file)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return Tiny(directory, config, {key: value.astype(np.float32) for key, value in tensors.items()})


@pytest.fixture
def make_gguf(tmp_path: Path) -> MakeGguf:
    """Writes a GGUF file; matrices as `kind`, without the tensors in `leave_out`, with extra metadata and tensors."""

    def make(
        family: str = "llama",
        *,
        kind: str = "F32",
        name: str = "tiny.gguf",
        leave_out: tuple[str, ...] = (),
        metadata: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
        extra: dict[str, NDArray[np.float32]] | None = None,
        architecture: str | None = None,
        tokenizer: bool = True,
        **changes: Any,
    ):
        config = config_of(family, **changes)
        tensors = tensors_of(config)
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture or family)
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_theta"])
        if tokenizer:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_list(vocabulary())
            writer.add_token_types([3, 3] + [1] * (VOCAB - 2))
            writer.add_token_merges(["a b"])
            writer.add_eos_token_id(1)
        metadata(writer)
        quantised = gguf.GGMLQuantizationType[kind]
        for key, value in tensors.items():
            if (stored := gguf_name(key)) in leave_out:
                continue
            if family == "llama":
                value = interleaved(key, value, config)
            if value.ndim == 1 or kind == "F32":
                writer.add_tensor(stored, value)
            else:
                writer.add_tensor(stored, gguf.quants.quantize(value, quantised), raw_dtype=quantised)
        for stored, value in (extra or {}).items():
            writer.add_tensor(stored, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Tiny(path, config, tensors)

    return make


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor."""
    for theirs, ours in (
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ):
        name = name.replace(theirs, ours)
    return name


def interleaved(name: str, value: NDArray[np.float32], config: dict[str, Any]) -> NDArray[np.float32]:
    """q and k rows in the order of Llama GGUF files: element i and i + head/2 become neighbours."""
    kind = name.rpartition("self_attn.")[2].split("_")[0]
    if kind not in ("q", "k"):
        return value
    heads = config["num_attention_heads" if kind == "q" else "num_key_value_heads"]
    halves = value.reshape(heads, 2, config["head_dim"] // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)


def reference_logits(
    config: dict[str, Any], tensors: dict[str, NDArray[np.float32]], ids: list[int], frequencies: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Logits [tokens, vocabulary] by an independent, plain float64 transformer: one head at a time, no cache."""
    w = {name: value.astype(np.float64) for name, value in tensors.items()}
    heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight

    def rotate(x):
        angles = np.arange(len(ids))[:, None] * frequencies
        low, high = x[:, : head // 2], x[:, head // 2 :]
        return np.concatenate(
            [low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles)], -1
        )

    x = w["model.embed_tokens.weight"][ids]
    future = np.triu(np.ones((len(ids), len(ids)), bool), 1)
    for number in range(config["num_hidden_layers"]):
        p = f"model.layers.{number}."
        a = f"{p}self_attn."
        n = norm(x, w[f"{p}input_layernorm.weight"])
        q, k, v = (n @ w[f"{a}{i}_proj.weight"].T + w.get(f"{a}{i}_proj.bias", 0.0) for i in "qkv")
        outputs = []
        for h in range(heads):
            g = h * kv_heads // heads
            qh, kh, vh = q[:, h * head :][:, :head], k[:, g * head :][:, :head], v[:, g * head :][:, :head]
            if f"{a}q_norm.weight" in w:
                qh, kh = norm(qh, w[f"{a}q_norm.weight"]), norm(kh, w[f"{a}k_norm.weight"])
            scores = rotate(qh) @ rotate(kh).T / np.sqrt(head)
            scores[future] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            outputs.append(weights / weights.sum(-1, keepdims=True) @ vh)
        x = x + np.concatenate(outputs, -1) @ w[f"{a}o_proj.weight"].T + w.get(f"{a}o_proj.bias", 0.0)
        n = norm(x, w[f"{p}post_attention_layernorm.weight"])
        gate = n @ w[f"{p}mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (n @ w[f"{p}mlp.up_proj.weight"].T)) @ w[f"{p}mlp.down_proj.weight"].T
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"]) @ output.T


@pytest.fixture
def reference() -> Callable[..., NDArray[np.float64]]:
    """See `reference_logits`."""
    return reference_logits


@pytest.fixture
def bfloat16() -> Any:
    """numpy's bfloat16."""
    return ml_dtypes.bfloat16
