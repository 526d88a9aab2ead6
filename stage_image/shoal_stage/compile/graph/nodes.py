"""Small pieces that every block is made of: constants and the RMS norm, in the form that OpenVINO recognises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import openvino.opset15 as op
from numpy.typing import NDArray
from openvino import Node, Output

NodeLike: TypeAlias = Node | Output


def integers(*values: int) -> Node:
    """A one-dimensional i64 constant."""
    return op.constant(np.array(values, np.int64))


def scalar(value: int) -> Node:
    """A zero-dimensional i64 constant: an axis or an index."""
    return op.constant(np.array(value, np.int64))


def reals(values: NDArray[np.float32], shape: Sequence[int]) -> Node:
    """An f32 constant of the given shape."""
    return op.constant(np.ascontiguousarray(values, np.float32).reshape(shape))


def rms_norm(x: NodeLike, weight: NDArray[np.float32], epsilon: float) -> Node:
    """RMS norm over the last axis. Plugins recognise exactly this chain of operations and make one RMS node of it."""
    rank = x.get_output_partial_shape(0).rank if isinstance(x, Node) else x.partial_shape.rank
    ones = [1] * rank.get_length()
    square = op.power(x, reals(np.array(2.0, np.float32), ones))
    mean = op.reduce_mean(square, integers(-1), keep_dims=True)
    root = op.sqrt(op.add(mean, reals(np.array(epsilon, np.float32), ones)))
    normal = op.multiply(x, op.divide(reals(np.array(1.0, np.float32), ones), root))
    return op.multiply(normal, reals(weight, [*ones[:-1], -1]))
