"""Is the attention fused? A deviation in the graph costs speed and memory silently; the runtime model tells.

Source of the names: OpenVINO's runtime model (`CompiledModel.get_runtime_model`), rt_info `layerType`.
"""

from __future__ import annotations

from collections import Counter

import openvino as ov

from shoal.errors import CheckpointError

FUSED_ATTENTION = "ScaledDotProductAttention"
PAGED_ATTENTION = "PagedAttention"
FUSED_ROPE = "RoPE"


def layer_types(compiled: ov.CompiledModel) -> Counter[str]:
    """How often each kind of operation runs in a compiled model."""
    kinds = (node.get_rt_info()["layerType"] for node in compiled.get_runtime_model().get_ordered_ops())
    return Counter(kind if isinstance(kind, str) else kind.astype(str) for kind in kinds)


def check_layer(model: ov.Model) -> None:
    """Compile one layer for the CPU and see that its attention, its KV state and its RoPE are fused.

    Raises CheckpointError: the family's graph, not the user's file, would be to blame, but nobody else would notice.
    """
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
    found = layer_types(compiled)
    if found[FUSED_ATTENTION] != 1 or found[FUSED_ROPE] != 2:
        raise CheckpointError(
            f"{model.friendly_name}: this OpenVINO ({ov.__version__}) runs {found[FUSED_ATTENTION]} fused attentions "
            f"and {found[FUSED_ROPE]} RoPE instead of 1 and 2: the model would be slow; use the pinned release"
        )
