"""The first and the last block: token embedding, and final norm with the output projection."""

from __future__ import annotations

import numpy as np
import openvino.opset15 as op
from numpy.typing import NDArray
from openvino import Model, Node, Type

from shoal_stage.compile.architecture import Architecture
from shoal_stage.compile.graph.layer import Linear, parameter, result
from shoal_stage.compile.graph.nodes import integers, rms_norm, scalar


def embedding(table: Node) -> Model:
    """input_ids [batch, tokens] -> inputs_embeds [batch, tokens, hidden]; `table` is [vocabulary, hidden]."""
    input_ids = parameter([-1, -1], Type.i64, "input_ids")
    rows = op.gather(table, op.convert(input_ids, "i32"), op.constant(np.int32(0)))
    return Model([result(rows, "inputs_embeds")], [input_ids], "embed")


def head(architecture: Architecture, norm: NDArray[np.float32], linear: Linear, weight: str) -> Model:
    """inputs_embeds [batch, tokens, hidden], logits_indices [S] -> logits [S, vocabulary].

    `logits_indices` counts over batch x tokens: only positions that are sampled pay for the vocabulary. The same graph
    serves [1, T, hidden] of the stateful form and [T, 1, hidden] of the paged one.
    """
    hidden = parameter([-1, -1, architecture.hidden_size], Type.f32, "inputs_embeds")
    indices = parameter([-1], Type.i64, "logits_indices")
    flat = op.reshape(hidden, integers(-1, architecture.hidden_size), special_zero=False)
    chosen = op.gather(flat, indices, scalar(0))
    logits = linear(rms_norm(chosen, norm, architecture.norm_epsilon), weight)
    return Model([result(logits, "logits")], [hidden, indices], "head")
