"""Grouped-query attention with its KV state, written once for all families.

The form is not free. Plugins fuse `ReadValue -> Gather(beam_idx) -> Concat -> ScaledDotProductAttention` with `Assign`
into one operation that owns the KV cache, and only when
- the Gather by beam_idx is there,
- no ShapeOf hangs on the KV Concat,
- the broadcast from KV heads to heads has a constant shape.
Every deviation costs the fusion silently, which is why a written block is checked (`shoal_stage.compile.check`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino.opset15 as op
from openvino import Node, PartialShape, Type
from openvino.op.util import Variable, VariableInfo

from shoal_stage.compile.architecture import Architecture
from shoal_stage.compile.graph.nodes import NodeLike, integers, reals, scalar
from shoal_stage.compile.graph.shared import Shared


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention's output [batch, tokens, heads x head] and the sinks that write the KV state."""

    output: Node
    sinks: list[Node]


def split_heads(x: NodeLike, heads: int, head_size: int) -> Node:
    """[batch, tokens, heads x head] -> [batch, tokens, heads, head]."""
    return op.reshape(x, integers(0, 0, heads, head_size), special_zero=True)


def rotate(x: NodeLike, shared: Shared, head_size: int) -> Node:
    """Rotary embedding of [batch, heads, tokens, head], half-split form: recognised and fused by the plugins."""
    half = head_size // 2
    low = op.slice(x, integers(0), integers(half), integers(1), integers(3))
    high = op.slice(x, integers(half), integers(np.iinfo(np.int64).max), integers(1), integers(3))
    turned = op.concat([op.multiply(high, reals(np.array(-1.0, np.float32), [1, 1, 1, 1])), low], -1)
    return op.add(op.multiply(x, shared.cos), op.multiply(turned, shared.sin))


def attend(architecture: Architecture, layer: int, shared: Shared, q: Node, k: Node, v: Node) -> Attention:
    """Attention of q [batch, tokens, heads, head] over the state of `layer` extended by k and v (KV heads).

    `layer` is the layer's number in the whole model: state names must differ between the layers of a stage.
    """
    q, k, v = (op.transpose(x, integers(0, 2, 1, 3)) for x in (q, k, v))
    q, k = (rotate(x, shared, architecture.head_size) for x in (q, k))
    keys, key_sink = _extend_state(architecture, f"layer.{layer}.key", shared, k)
    values, value_sink = _extend_state(architecture, f"layer.{layer}.value", shared, v)
    context = op.scaled_dot_product_attention(
        q, _to_heads(architecture, keys), _to_heads(architecture, values), shared.mask, causal=False
    )
    merged = op.reshape(
        op.transpose(context, integers(0, 2, 1, 3)),
        integers(0, 0, architecture.heads * architecture.head_size),
        special_zero=True,
    )
    return Attention(merged, [key_sink, value_sink])


def _extend_state(architecture: Architecture, name: str, shared: Shared, new: Node) -> tuple[Node, Node]:
    info = VariableInfo()
    info.data_shape = PartialShape([-1, architecture.kv_heads, -1, architecture.head_size])
    info.data_type = Type.f32
    info.variable_id = name
    variable = Variable(info)
    past = op.gather(op.read_value(shared.empty_state, variable), shared.beam_idx, scalar(0))
    whole = op.concat([past, new], 2)
    return whole, op.assign(whole, variable)


def _to_heads(architecture: Architecture, x: Node) -> Node:
    if architecture.group == 1:
        return x
    repeated = op.broadcast(
        op.unsqueeze(x, scalar(2)), integers(1, 1, architecture.group, 1, 1), broadcast_spec="BIDIRECTIONAL"
    )
    return op.reshape(repeated, integers(0, architecture.heads, -1, architecture.head_size), special_zero=True)
