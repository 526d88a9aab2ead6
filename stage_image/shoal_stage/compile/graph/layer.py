"""One decoder layer as a model of its own: pre-norm attention and a gated MLP.

Llama, Mistral, Qwen2 and Qwen3 differ in what `Architecture` says (bias, norm of queries and keys); a family with
another layer brings its own builder of the same signature (see `shoal_stage.compile.families`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino.opset15 as op
from numpy.typing import NDArray
from openvino import Model, Node, Type

from shoal_stage.compile.architecture import Architecture
from shoal_stage.compile.graph.attention import attend, split_heads
from shoal_stage.compile.graph.nodes import NodeLike, reals, rms_norm
from shoal_stage.compile.graph.shared import shared_nodes

Tensor = Callable[[str], NDArray[np.float32]]
"""Reads a tensor of this layer by its name below `model.layers.N.`, as float32."""

Linear = Callable[[NodeLike, str], Node]
"""Multiplies by the transposed weight of that name, stored in the precision asked for."""

LayerBuilder = Callable[[Architecture, int, Tensor, Linear], Model]


def decoder_layer(architecture: Architecture, layer: int, tensor: Tensor, linear: Linear) -> Model:
    """Layer `layer` of the whole model: inputs_embeds, attention_mask, position_ids, beam_idx -> hidden."""
    x = parameter([-1, -1, architecture.hidden_size], Type.f32, "inputs_embeds")
    attention_mask = parameter([-1, -1], Type.i64, "attention_mask")
    position_ids = parameter([-1, -1], Type.i64, "position_ids")
    beam_idx = parameter([-1], Type.i32, "beam_idx")
    shared = shared_nodes(architecture, x, attention_mask, position_ids, beam_idx)

    def project(source: Node, name: str, bias: bool) -> Node:
        product = linear(source, f"{name}.weight")
        return op.add(product, reals(tensor(f"{name}.bias"), [1, 1, -1])) if bias else product

    normal = rms_norm(x, tensor("input_layernorm.weight"), architecture.norm_epsilon)
    q, k, v = (
        split_heads(project(normal, f"self_attn.{name}_proj", architecture.qkv_bias), heads, architecture.head_size)
        for name, heads in (("q", architecture.heads), ("k", architecture.kv_heads), ("v", architecture.kv_heads))
    )
    if architecture.qk_norm:
        q = rms_norm(q, tensor("self_attn.q_norm.weight"), architecture.norm_epsilon)
        k = rms_norm(k, tensor("self_attn.k_norm.weight"), architecture.norm_epsilon)
    attention = attend(architecture, layer, shared, q, k, v)
    x2 = op.add(x, project(attention.output, "self_attn.o_proj", architecture.output_bias))

    normal = rms_norm(x2, tensor("post_attention_layernorm.weight"), architecture.norm_epsilon)
    gated = op.multiply(op.swish(linear(normal, "mlp.gate_proj.weight")), linear(normal, "mlp.up_proj.weight"))
    out = result(op.add(x2, linear(gated, "mlp.down_proj.weight")), "hidden")
    return Model([out], attention.sinks, [x, attention_mask, position_ids, beam_idx], f"layer-{layer:03d}")


def parameter(shape: list[int], element_type: Type, name: str) -> Node:
    """A model input with the name that chains and the paged transformation look for."""
    node = op.parameter(shape, element_type, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def result(source: Node, name: str) -> Node:
    """A model output of that name."""
    source.output(0).get_tensor().add_names({name})
    return op.result(source)
