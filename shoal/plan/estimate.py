"""Estimates before anything is compiled: block sizes from a checkpoint's shape, and the compiler's peak memory.

The compiler's figures were measured with NNCF 3.4.0, data-free INT4: a layer of Llama-3.1-8B's shape (218 million
weights) peaks at 1.1 GB, one of Llama-3.1-70B's (856 million) at 4.0 GB, whatever the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.manifest import ModelShape, Precision
from shoal.plan.facts import ModelFacts

COMPILE_BASE_BYTES = 256 << 20
COMPILE_BYTES_PER_WEIGHT = 4.7


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What a checkpoint's header says before compiling."""

    shape: ModelShape
    intermediate_size: int

    @property
    def layer_weights(self) -> int:
        """Weights of one layer: attention projections and the three matrices of a gated MLP."""
        shape = self.shape
        query = shape.heads * shape.head_size
        key_value = shape.kv_heads * shape.head_size
        return shape.hidden_size * (2 * query + 2 * key_value) + 3 * shape.hidden_size * self.intermediate_size

    @property
    def table_weights(self) -> int:
        """Weights of the embedding, and of the head."""
        return self.shape.vocab_size * self.shape.hidden_size


def stored_bytes(weights: int, precision: Precision, group_size: int | None = None) -> int:
    """Bytes of that many weights: INT4 has a 16-bit scale and a 4-bit zero point a group (128 unless said)."""
    if precision is Precision.INT4:
        return int(weights * (0.5 + 2.5 / (group_size or 128)))
    return weights * {Precision.INT8: 1, Precision.F16: 2, Precision.F32: 4}[precision]


def model_facts(checkpoint: CheckpointFacts, precision: Precision, group_size: int | None = None) -> ModelFacts:
    """The model as it will be when compiled. With INT4 the embedding and the head are kept in INT8."""
    tables = Precision.INT8 if precision is Precision.INT4 else precision
    table = stored_bytes(checkpoint.table_weights, tables)
    layer = stored_bytes(checkpoint.layer_weights, precision, group_size)
    matrix = stored_bytes(checkpoint.shape.hidden_size * checkpoint.intermediate_size, precision, group_size)
    count = checkpoint.shape.layers
    return ModelFacts(
        shape=checkpoint.shape,
        embed_bytes=table,
        layer_bytes=(layer,) * count,
        head_bytes=table,
        largest_tensors=(table, *(matrix,) * count, table),
    )


def compile_memory_estimate(checkpoint: CheckpointFacts) -> int:
    """Peak bytes of the compiler: one block at a time, so the largest block counts, not the model."""
    largest = max(checkpoint.layer_weights, checkpoint.table_weights)
    return COMPILE_BASE_BYTES + int(largest * COMPILE_BYTES_PER_WEIGHT)
