"""How much memory the compiler takes for a model: the memory request of a compile Job, and a line of `shoal plan`.

Measured with NNCF 3.4.0, data-free INT4: a layer of Llama-3.1-8B's shape (218 million weights) peaks at 1.1 GB, one of
Llama-3.1-70B's (856 million) at 4.0 GB, whatever the number of layers: one block is in memory at a time.
"""

from __future__ import annotations

from shoal.manifest import Precision
from shoal.plan.devices import MIB
from shoal.plan.facts import ModelFacts

BASE_BYTES = 256 * MIB
PEAK_BYTES_PER_WEIGHT = 4.7


def bytes_per_weight(precision: Precision, group_size: int | None = None) -> float:
    """Stored bytes of a weight; INT4 has a 16-bit scale and a 4-bit zero point a group (128 unless said)."""
    if precision is Precision.INT4:
        return 0.5 + 2.5 / (group_size or 128)
    return {Precision.INT8: 1.0, Precision.F16: 2.0, Precision.F32: 4.0}[precision]


def compile_memory_estimate(model: ModelFacts, precision: Precision, group_size: int | None = None) -> int:
    """Peak bytes of the compiler: the block with the most weights counts, not the model.

    With INT4 the embedding and the head are kept in INT8.
    """
    tables = Precision.INT8 if precision is Precision.INT4 else precision
    layer = max(model.layer_bytes) / bytes_per_weight(precision, group_size)
    table = max(model.embed_bytes, model.head_bytes) / bytes_per_weight(tables)
    return BASE_BYTES + int(max(layer, table) * PEAK_BYTES_PER_WEIGHT)
