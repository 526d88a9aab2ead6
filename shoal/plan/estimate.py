"""How much memory the compiler takes for a model: what a compile Job asks for.

Measured by `python -m bench export`: 0.82 GB at the peak for Llama-3.1-8B's shape in INT4, whose largest block (the
embedding, in INT8) has 0.53 GB, and 1.22 GB for Llama-3.1-70B's with 1.05 GB, whatever the number of layers: one block
is in memory at a time, and that in its small form.
"""

from __future__ import annotations

from shoal.plan.devices import MIB
from shoal.plan.facts import ModelFacts

BASE_BYTES = 400 * MIB
"""The interpreter, OpenVINO, and the rows of a weight that are being quantised."""


def compile_memory_estimate(model: ModelFacts) -> int:
    """Peak bytes of the compiler: the largest block counts, not the model."""
    return BASE_BYTES + max(model.embed_bytes, *model.layer_bytes, model.head_bytes)
