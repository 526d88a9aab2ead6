"""A tiny Llama with random weights as a model directory (real blocks, real OpenVINO, a second to make)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from safetensors.numpy import save_file

from shoal.manifest import MANIFEST_FILE, Block, FileEntry, Manifest, Precision, file_sha256
from shoal_stage.compile.blocks import block_names, build_block, storage_for
from shoal_stage.compile.readers import open_checkpoint

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 96,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model directory (F32, 5 blocks)."""
    return build_tiny(tmp_path_factory, Precision.F32)


@pytest.fixture(scope="session")
def tiny_int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint in INT4."""
    return build_tiny(tmp_path_factory, Precision.INT4)


def build_tiny(tmp_path_factory: pytest.TempPathFactory, precision: Precision) -> Path:
    """Write the checkpoint and its model directory."""
    source, target = tmp_path_factory.mktemp("tiny-checkpoint"), tmp_path_factory.mktemp("tiny-model")
    (source / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(len(shape) == 1, 0.35, shape) for name, shape in shapes().items()}
    save_file({name: value.astype(np.float32) for name, value in weights.items()}, source / "model.safetensors")
    checkpoint = open_checkpoint(source)
    storage = storage_for(checkpoint.architecture, precision)
    (target / "blocks").mkdir()
    blocks = []
    for place in block_names(checkpoint.architecture.layers):
        path = target / "blocks" / f"{place.name}.xml"
        ov.save_model(build_block(checkpoint, place, storage), path, compress_to_fp16=False)
        xml, weights_bin = (entry(target, path.with_suffix(suffix)) for suffix in (".xml", ".bin"))
        blocks.append(Block(name=place.name, kind=place.kind, xml=xml, bin=weights_bin, weight_bytes=weights_bin.bytes))
    manifest = Manifest(
        name="tiny",
        source_sha256="0" * 64,
        precision=precision,
        group_size=storage.layers.group if storage.layers else None,
        shape=checkpoint.architecture.shape(),
        tied_embeddings=False,
        blocks=tuple(blocks),
    )
    (target / MANIFEST_FILE).write_bytes(manifest.canonical_json())
    return target


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of such a checkpoint."""
    hidden, wide, narrow, ffn, vocab = 64, 128, 64, 96, 96
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(3):
        found |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "self_attn.q_proj": (wide, hidden),
                "self_attn.k_proj": (narrow, hidden),
                "self_attn.v_proj": (narrow, hidden),
                "self_attn.o_proj": (hidden, wide),
                "post_attention_layernorm": (hidden,),
                "mlp.gate_proj": (ffn, hidden),
                "mlp.up_proj": (ffn, hidden),
                "mlp.down_proj": (hidden, ffn),
            }.items()
        }
    return found


def entry(root: Path, path: Path) -> FileEntry:
    """A file of the model directory as its manifest names it."""
    return FileEntry(path=path.relative_to(root).as_posix(), bytes=path.stat().st_size, sha256=file_sha256(path))
