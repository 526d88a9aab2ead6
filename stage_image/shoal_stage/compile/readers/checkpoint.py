"""What a reader gives the compiler: numbers, tensors by rows, and where the tokenizer is.

Tensors go by the names of Hugging Face's Llama (`model.layers.3.self_attn.q_proj.weight`), whatever the file calls
them; they are read by rows, from a mapped file, so that no reader ever holds a whole tensor as float.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import CheckpointError
from shoal_stage.compile.architecture import Architecture
from shoal_stage.compile.families.family import Family
from shoal_stage.compile.quantise import Grid
from shoal_stage.compile.tokenizer.source import TokenizerSource

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix that the file itself holds as 4-bit numbers, in groups of 32 columns.

    `grid(start, end)` says what they stand for in those rows. Without `zero_points` it is symmetric: 8 stands for 0.
    """

    zero_points: bool
    grid: Callable[[int, int], Grid]


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor in a file: [rows, columns] for a matrix, [count] for a vector. `read(start, end)` gives f32 rows."""

    name: str
    origin: str
    """The file and the name in it, for messages."""
    shape: tuple[int, ...]
    stored_bytes: int
    read: Callable[[int, int], NDArray[np.float32]]
    stored: Stored | None = None

    def rows(self, start: int, end: int) -> NDArray[np.float32]:
        """Rows [start, end) as contiguous float32. Raises CheckpointError when one holds NaN or infinity."""
        values = np.ascontiguousarray(self.read(start, end), np.float32)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.origin} holds NaN or infinite values: fetch it again")
        return values

    def whole(self) -> NDArray[np.float32]:
        """All of it: for vectors."""
        return self.rows(0, self.shape[0])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as somebody published it. Reading is lazy: only the header has been looked at."""

    path: Path
    family: Family
    architecture: Architecture
    tensors: Mapping[str, TensorView]
    tokenizer: TokenizerSource
    digest: Callable[[], str]
    """sha256 (hex) over the checkpoint's bytes; reads them all."""
    let_go: Callable[[], None] = lambda: None
    """Gives back the memory of what has been read from a mapped file; it can be read again."""

    def tensor(self, name: str) -> TensorView:
        """The tensor of that name; `check_tensors` has made sure that it exists."""
        return self.tensors[name]

    def layer_bytes(self, layer: int) -> int:
        """Stored bytes of one layer, for the progress bar."""
        prefix = layer_prefix(layer)
        return sum(view.stored_bytes for name, view in self.tensors.items() if name.startswith(prefix))


def layer_prefix(layer: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{layer}."


def expected_tensors(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the graph will ask for."""
    a = architecture
    wide, narrow, hidden, ffn = a.heads * a.head_size, a.kv_heads * a.head_size, a.hidden_size, a.ffn_size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (wide, hidden),
        "self_attn.k_proj.weight": (narrow, hidden),
        "self_attn.v_proj.weight": (narrow, hidden),
        "self_attn.o_proj.weight": (hidden, wide),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if a.qkv_bias:
        layer |= {f"self_attn.{x}_proj.bias": (n,) for x, n in (("q", wide), ("k", narrow), ("v", narrow))}
    if a.output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if a.qk_norm:
        layer |= {f"self_attn.{x}_norm.weight": (a.head_size,) for x in "qk"}
    names: dict[str, tuple[int, ...]] = {EMBEDDING: (a.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not a.tied_embeddings:
        names[OUTPUT] = (a.vocab_size, hidden)
    for number in range(a.layers):
        names |= {layer_prefix(number) + name: shape for name, shape in layer.items()}
    return names


def check_tensors(path: Path, architecture: Architecture, tensors: Mapping[str, TensorView]) -> None:
    """Every tensor that is needed is there in its shape, and none is there that the graph would silently leave out."""
    expected = expected_tensors(architecture)
    for name, shape in expected.items():
        view = tensors.get(name)
        if view is None:
            raise CheckpointError(f"{path} lacks the tensor {name}, which {architecture.family} models have")
        if view.shape != shape:
            raise CheckpointError(f"{view.origin} has shape {list(view.shape)}, its configuration says {list(shape)}")
    ignorable = {OUTPUT} if architecture.tied_embeddings else set()
    extra = sorted(set(tensors) - set(expected) - ignorable)
    if extra:
        raise CheckpointError(
            f"{path} holds {len(extra)} tensors that {architecture.family} models do not use, such as {extra[0]}: "
            "running it without them would give wrong answers"
        )
