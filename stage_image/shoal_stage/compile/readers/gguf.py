"""GGUF files: their metadata as an `Architecture`, their tensors dequantised by rows from the mapped file."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K, dequantize
from numpy.typing import NDArray

from shoal.errors import CheckpointError
from shoal.manifest import file_sha256
from shoal_stage.compile.architecture import Architecture, FrequencyFactors, LinearScaling, Rope, RopeScaling
from shoal_stage.compile.families import family_of_gguf
from shoal_stage.compile.families.family import Family
from shoal_stage.compile.quantise import Grid
from shoal_stage.compile.readers.checkpoint import (
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    Checkpoint,
    Stored,
    TensorView,
    check_tensors,
    layer_prefix,
)
from shoal_stage.compile.readers.gguf_header import GgufHeader, GgufTensor, Value, read_header
from shoal_stage.compile.tokenizer.source import GgufTokenizer

READABLE = frozenset(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)

ROPE_FACTORS = "rope_freqs.weight"

_TOP_LEVEL = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": OUTPUT}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file. Raises CheckpointError when it is damaged or of a kind that shoal does not know."""
    try:
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    data = memoryview(mapped)
    header = read_header(data, path)
    metadata = Metadata(header.metadata, path)
    family = family_of_gguf(metadata.text("general.architecture"), str(path))
    architecture = _architecture(metadata, header, family, data)
    named = {_canonical(name): tensor for name, tensor in header.tensors.items() if name != ROPE_FACTORS}
    tensors = {name: _view(name, tensor, data, path, architecture, family) for name, tensor in named.items()}
    check_tensors(path, architecture, tensors)
    return Checkpoint(
        path=path,
        family=family,
        architecture=architecture,
        tensors=tensors,
        tokenizer=GgufTokenizer(path, header.metadata),
        digest=lambda: file_sha256(path),
        let_go=lambda: mapped.madvise(mmap.MADV_DONTNEED),
    )


class Metadata:
    """GGUF metadata with the types that are expected; architecture keys are given without their prefix."""

    def __init__(self, values: Mapping[str, Value], path: Path) -> None:
        self._values = values
        self._path = path

    def text(self, key: str) -> str:
        value = self._values.get(key)
        if not isinstance(value, str):
            raise CheckpointError(f"{self._path} lacks the text {key} in its header")
        return value

    def get(self, key: str) -> Value | None:
        """A value below the architecture's prefix, None when it is not there."""
        return self._values.get(f"{self._values['general.architecture']}.{key}")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # newer converters write one number a layer
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self._path} lacks the number {key} in its header, or it differs between layers")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if not 0 < value < math.inf:
            raise CheckpointError(f"{self._path} says {key} = {value} in its header: a number above 0 is due")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if isinstance(value, float) and not value.is_integer():
            raise CheckpointError(f"{self._path} says {key} = {value} in its header: a whole number is due")
        return int(value)


def _architecture(metadata: Metadata, header: GgufHeader, family: Family, data: memoryview) -> Architecture:
    heads = metadata.integer("attention.head_count")
    hidden = metadata.integer("embedding_length")
    head_size = metadata.integer("attention.key_length", hidden // max(heads, 1))
    if metadata.integer("attention.value_length", head_size) != head_size:
        raise CheckpointError("the checkpoint's keys and values differ in head size, which shoal does not run")
    if metadata.integer("rope.dimension_count", head_size) != head_size:
        raise CheckpointError("the checkpoint rotates only a part of each head, which shoal does not run")
    if metadata.integer("expert_count", 0):
        raise CheckpointError("the checkpoint is a mixture of experts, which shoal does not run")
    embedding = header.tensors.get("token_embd.weight")
    context = metadata.integer("context_length")
    notes: tuple[str, ...] = ()
    if 0 < (window := metadata.integer("attention.sliding_window", 0)) < context:
        context, notes = window, (f"context cut from {context} to the sliding window of {window} tokens",)
    return Architecture(
        family=family.name,
        layers=metadata.integer("block_count"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=metadata.integer("attention.head_count_kv", heads),
        head_size=head_size,
        ffn_size=metadata.integer("feed_forward_length"),
        vocab_size=embedding.shape[0] if embedding else metadata.integer("vocab_size"),
        max_context=context,
        norm_epsilon=metadata.positive("attention.layer_norm_rms_epsilon"),
        rope=Rope(metadata.positive("rope.freq_base", 10000.0), _rope_scaling(metadata, header, data)),
        tied_embeddings="output.weight" not in header.tensors,
        qkv_bias=family.qkv_bias.holds("blk.0.attn_q.bias" in header.tensors),
        output_bias=family.output_bias.holds("blk.0.attn_output.bias" in header.tensors),
        qk_norm=family.qk_norm.holds("blk.0.attn_q_norm.weight" in header.tensors),
        notes=notes,
    )


def _rope_scaling(metadata: Metadata, header: GgufHeader, data: memoryview) -> RopeScaling | None:
    if (tensor := header.tensors.get(ROPE_FACTORS)) is not None:
        if tensor.kind is not GGMLQuantizationType.F32:
            raise CheckpointError(f"{ROPE_FACTORS} is stored as {tensor.kind.name}, F32 is expected")
        factors = np.frombuffer(data[tensor.offset : tensor.offset + tensor.bytes], np.float32)
        return FrequencyFactors(tuple(float(value) for value in factors))
    kind = metadata.get("rope.scaling.type") or "none"
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 0.0))
    if kind == "linear" or (kind == "none" and factor not in (0.0, 1.0)):
        return LinearScaling(factor)
    if kind != "none":
        raise CheckpointError(f"the checkpoint's RoPE scaling {kind!r} is not known; known are linear and llama3")
    return None


def _canonical(name: str) -> str:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _IN_LAYER:
        return name  # check_tensors reports it by the name in the file
    return f"{layer_prefix(int(match[1]))}{_IN_LAYER[match[2]]}.{match[3]}"


def _view(
    name: str, tensor: GgufTensor, data: memoryview, path: Path, architecture: Architecture, family: Family
) -> TensorView:
    if tensor.kind not in READABLE:
        known = ", ".join(sorted(kind.name for kind in READABLE))
        raise CheckpointError(
            f"{path}: tensor {tensor.name} is stored as {tensor.kind.name}, which shoal does not read; it reads {known}"
        )
    order = None
    if family.gguf_interleaves_rope and (match := re.search(r"self_attn\.([qk])_proj\.(weight|bias)$", name)):
        order = _half_split_order(architecture.heads if match[1] == "q" else architecture.kv_heads, tensor.shape[0])
    return TensorView(
        name=name,
        origin=f"{path}: {tensor.name}",
        shape=tensor.shape,
        stored_bytes=tensor.bytes,
        read=tensor_rows(data, tensor, order),
        stored=stored_numbers(data, tensor, order),
    )


def _half_split_order(heads: int, rows: int) -> NDArray[np.intp]:
    """For each row of the half-split form, its row in the file, where pairs that rotate together are neighbours."""
    if rows % (2 * heads):
        raise CheckpointError(f"a q or k projection with {rows} rows does not fit {heads} heads")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def tensor_rows(
    data: memoryview, tensor: GgufTensor, order: NDArray[np.intp] | None = None
) -> Callable[[int, int], NDArray[np.float32]]:
    """Reads rows [start, end) of a tensor, dequantised, in the order given. Only the rows asked for are touched."""
    stored = np.frombuffer(data[tensor.offset : tensor.offset + tensor.bytes], np.uint8)
    if len(tensor.shape) == 1:
        whole = np.asarray(dequantize(stored, tensor.kind), np.float32)
        return lambda start, end: (whole if order is None else whole[order])[start:end]
    by_row = stored.reshape(tensor.shape[0], -1)

    def rows(start: int, end: int) -> NDArray[np.float32]:
        chosen = by_row[start:end] if order is None else by_row[order[start:end]]
        return np.asarray(dequantize(chosen, tensor.kind), np.float32)

    return rows


def stored_numbers(data: memoryview, tensor: GgufTensor, order: NDArray[np.intp] | None) -> Stored | None:
    """The tensor's own 4-bit numbers, if it has such.

    Blocks begin with their scales: Q4_0 has f16 d, its values are (number - 8) d; Q4_1 has f16 d and m, number d + m;
    Q4_K has f16 d and dmin and, for each of its 8 groups, 6-bit factors of both, number (d f) - (dmin g).
    Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
    """
    grids: dict[GGMLQuantizationType, Callable[[NDArray[np.uint8]], Grid]] = {
        GGMLQuantizationType.Q4_0: _grid_q4_0,
        GGMLQuantizationType.Q4_1: _grid_q4_1,
        GGMLQuantizationType.Q4_K: _grid_q4_k,
    }
    if tensor.kind not in grids or len(tensor.shape) != 2:
        return None
    size = int(GGML_QUANT_SIZES[tensor.kind][1])
    blocks = np.frombuffer(data[tensor.offset : tensor.offset + tensor.bytes], np.uint8)
    blocks = blocks.reshape(tensor.shape[0], -1, size)

    def grid(start: int, end: int) -> Grid:
        return grids[tensor.kind](blocks[start:end] if order is None else blocks[order[start:end]])

    return Stored(tensor.kind is not GGMLQuantizationType.Q4_0, grid)


def _halves(blocks: NDArray[np.uint8], count: int) -> NDArray[np.float32]:
    """The first `count` f16 numbers of blocks [rows, blocks, bytes], as [rows, blocks, count]."""
    return np.ascontiguousarray(blocks[..., : 2 * count]).view(np.float16).astype(np.float32)


def _grid_q4_0(blocks: NDArray[np.uint8]) -> Grid:
    d = _halves(blocks, 1)
    return Grid(d, -8 * d)


def _grid_q4_1(blocks: NDArray[np.uint8]) -> Grid:
    d, m = np.split(_halves(blocks, 2), 2, axis=-1)
    return Grid(d, m)


def _grid_q4_k(blocks: NDArray[np.uint8]) -> Grid:
    rows, count, _ = blocks.shape
    d, dmin = np.split(_halves(blocks, 2), 2, axis=-1)
    packed = np.ascontiguousarray(blocks[..., 4 : 4 + Q4_K.K_SCALE_SIZE]).reshape(rows * count, -1)
    factors, minima = Q4_K.get_scale_min(packed)
    return Grid(
        (d * factors.reshape(rows, count, -1)).reshape(rows, -1, 1).astype(np.float32),
        (-dmin * minima.reshape(rows, count, -1)).reshape(rows, -1, 1).astype(np.float32),
    )
