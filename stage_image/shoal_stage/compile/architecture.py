"""The numbers of a decoder-only transformer, as the readers find them and the graph builders use them.

A reader (GGUF header or Hugging Face config.json) fills in an `Architecture`; from there on nothing knows which kind of
file the numbers came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.errors import CheckpointError
from shoal.manifest import ModelShape

MAX_LAYERS = 4096
"""Far above any model: a damaged header must not make a list of billions of tensors that would be looked for."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """RoPE scaling of Llama 3.1 and later: low frequencies are stretched, high ones kept, a ramp in between.

    Source: the `llama3` entry of rope_scaling in the config.json that Meta publishes with Llama 3.1.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Each inverse frequency is divided by its own factor: the form in which GGUF stores Llama 3's scaling."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | FrequencyFactors


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding in its half-split form, over the whole head."""

    theta: float
    scaling: RopeScaling | None = None

    def inverse_frequencies(self, head_size: int) -> NDArray[np.float32]:
        """[head_size / 2] f32: radians per position of each pair of a head's elements."""
        exponents = np.arange(0, head_size, 2, dtype=np.float64) / head_size
        plain = 1.0 / self.theta**exponents
        match self.scaling:
            case None:
                scaled = plain
            case LinearScaling(factor):
                scaled = plain / factor
            case Llama3Scaling() as llama3:
                scaled = _llama3(plain, llama3)
            case FrequencyFactors(factors):
                scaled = plain / np.asarray(factors, np.float64)
        return scaled.astype(np.float32)


def _llama3(plain: NDArray[np.float64], scaling: Llama3Scaling) -> NDArray[np.float64]:
    turns = scaling.original_context * plain / (2 * np.pi)  # full turns within the original context
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    mixed: NDArray[np.float64] = plain * (keep + (1.0 - keep) / scaling.factor)
    return mixed


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything that the graph of a model depends on, except its weights."""

    family: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    max_context: int
    norm_epsilon: float
    rope: Rope
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    notes: tuple[str, ...] = field(default=())
    """What the compiler tells its user about this model, such as a context that was cut."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden_size", "heads", "kv_heads", "head_size", "ffn_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"the checkpoint says {name} = {getattr(self, name)}: it must be positive")
        if self.layers > MAX_LAYERS:
            raise CheckpointError(f"the checkpoint says layers = {self.layers}: at most {MAX_LAYERS} are taken")
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"the checkpoint says {self.heads} heads over {self.kv_heads} KV heads: it must divide evenly"
            )
        if self.head_size % 2:
            raise CheckpointError(f"the checkpoint says head size {self.head_size}: rotary embedding needs an even one")
        if isinstance(self.rope.scaling, FrequencyFactors):
            count = len(self.rope.scaling.factors)
            if count != self.head_size // 2:
                raise CheckpointError(f"rope_freqs.weight holds {count} factors, head size {self.head_size} needs half")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    def shape(self) -> ModelShape:
        """The part of it that goes into the manifest."""
        return ModelShape(
            family=self.family,
            layers=self.layers,
            hidden_size=self.hidden_size,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
        )
