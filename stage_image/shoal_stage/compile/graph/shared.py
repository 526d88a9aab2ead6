"""What all layers of a stage have in common: RoPE's cos and sin, the attention mask, the shape of an empty KV state.

Each layer block carries its own copy, so that it is a whole model; a chain of blocks keeps the first layer's copy and
hands it to the others (`shoal_stage.engine.chain`). The nodes that are handed over are found by the names below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino.opset15 as op
from openvino import Node

from shoal_stage.compile.architecture import Architecture
from shoal_stage.compile.graph.nodes import integers, reals, scalar

COS = "shared/cos"
SIN = "shared/sin"
MASK = "shared/mask"
EMPTY_STATE = "shared/empty_state"
SHARED_NODES = (COS, SIN, MASK, EMPTY_STATE)


@dataclass(frozen=True, slots=True)
class Shared:
    """Nodes that every layer of a stage reads."""

    cos: Node
    sin: Node
    mask: Node
    empty_state: Node
    beam_idx: Node


def shared_nodes(
    architecture: Architecture, hidden: Node, attention_mask: Node, position_ids: Node, beam_idx: Node
) -> Shared:
    """Build them from a block's parameters."""
    cos, sin = _rotary(architecture, position_ids)
    shape = op.concat([op.shape_of(beam_idx), integers(architecture.kv_heads, 0, architecture.head_size)], 0)
    empty = op.broadcast(op.constant(np.float32(0)), shape)
    mask = _causal_mask(hidden, attention_mask)
    for node, name in ((cos, COS), (sin, SIN), (mask, MASK), (empty, EMPTY_STATE)):
        node.set_friendly_name(name)
    return Shared(cos, sin, mask, empty, beam_idx)


def _rotary(architecture: Architecture, position_ids: Node) -> tuple[Node, Node]:
    """cos and sin [batch, 1, tokens, head]. By Multiply, not MatMul: positions stay f32 whatever the hint."""
    frequencies = reals(architecture.rope.inverse_frequencies(architecture.head_size), [1, 1, -1])
    positions = op.unsqueeze(op.convert(position_ids, "f32"), scalar(-1))
    half = op.multiply(positions, frequencies)
    angles = op.concat([half, half], -1)
    return op.unsqueeze(op.cos(angles), scalar(1)), op.unsqueeze(op.sin(angles), scalar(1))


def _causal_mask(hidden: Node, attention_mask: Node) -> Node:
    """Additive mask [batch, 1, tokens, slots]: 0 where a token may look, the most negative float elsewhere.

    Token i of the step sits in slot `slots - tokens + i` and sees the slots up to its own whose attention_mask is 1.
    Slots, not positions: after a rollback rejected slots stay in the state with attention_mask 0, and position ids
    count the live ones only. The number of slots comes from attention_mask: a ShapeOf on the KV state would keep the
    plugin from fusing state and attention.
    """
    slots = op.gather(op.shape_of(attention_mask), scalar(1), scalar(0))
    tokens = op.gather(op.shape_of(hidden), scalar(1), scalar(0))
    columns = op.range(scalar(0), slots, scalar(1), output_type="i64")
    own = op.range(op.subtract(slots, tokens), slots, scalar(1), output_type="i64")
    causal = op.less_equal(op.unsqueeze(columns, scalar(0)), op.unsqueeze(own, scalar(1)))
    live = op.convert(op.unsqueeze(attention_mask, integers(1, 2)), "boolean")
    visible = op.logical_and(live, causal)
    lowest = op.constant(np.float32(np.finfo(np.float32).min))
    return op.select(visible, op.constant(np.float32(0)), lowest)
