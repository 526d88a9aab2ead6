"""From a tensor of the checkpoint to a node of the graph, in the precision asked for, a few rows at a time.

The chain Constant -> Convert (-> Subtract) -> Multiply -> Reshape -> Convert is what NNCF writes and what the plugins
recognise as a compressed weight. Zero points that are no whole numbers, which the CPU plugin takes, are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as op
from numpy.typing import NDArray
from openvino import Node
from openvino._offline_transformations import compress_model_transformation

from shoal.errors import CheckpointError
from shoal.manifest import Precision
from shoal_stage.compile.graph.nodes import NodeLike, integers
from shoal_stage.compile.quantise import Floats, Quantised, Scheme, keep, pack4, quantise
from shoal_stage.compile.readers.checkpoint import TensorView

CHUNK_BYTES = 16 << 20
"""Float bytes of the rows that are in work at a time."""


def chunks(view: TensorView, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int, Floats]]:
    """The rows of a matrix from first to last, as (start, end, rows)."""
    total, columns = view.shape
    step = max(1, chunk_bytes // (4 * columns))
    for start in range(0, total, step):
        end = min(start + step, total)
        yield start, end, view.rows(start, end)


def weight_node(view: TensorView, precision: Precision, scheme: Scheme | None) -> Node:
    """An f32 node of the tensor's shape [rows, columns]; `scheme` says how when the precision is INT4 or INT8."""
    if scheme is not None:
        return _quantised(view, scheme)
    if precision is Precision.F32:
        return _collect(view, ov.Type.f32)
    return _half(_collect(view, ov.Type.f16))


def linear(x: NodeLike, weight: Node) -> Node:
    """x multiplied by the transpose of a weight [out, in]."""
    return op.matmul(x, weight, transpose_a=False, transpose_b=True)


def _collect(view: TensorView, element: ov.Type) -> Node:
    tensor, whole = _allocate(element, view.shape)
    for start, end, rows in chunks(view):
        if element == ov.Type.f16 and (limit := float(np.abs(rows).max(initial=0.0))) > np.finfo(np.float16).max:
            raise CheckpointError(f"{view.origin}: tensor {view.name} holds {limit:.3g}, too large for F16: use F32")
        whole[start:end] = rows
    return _constant(tensor)


def _half(constant: Node) -> Node:
    """An f16 constant as f32, marked so that plugins keep it as f16 instead of converting it when they load.

    Python cannot set the mark (`decompression`); OpenVINO's own pass sets it on a small constant, which is exchanged.
    """
    x = op.parameter([-1, -1], np.float32)
    small = op.constant(np.ones((1, 1), np.float32))
    model = ov.Model([op.result(linear(x, small))], [x], "half")
    compress_model_transformation(model)
    (convert,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "Convert")
    convert.input(0).replace_source_output(constant.output(0))
    model.validate_nodes_and_infer_types()
    return convert


def _allocate(element: ov.Type, shape: tuple[int, ...]) -> tuple[ov.Tensor, NDArray[Any]]:
    """Memory of OpenVINO's own and its view, flat bytes for i4 and u4: what is written there is never copied again."""
    tensor = ov.Tensor(element, list(shape))
    return tensor, tensor.data


def _constant(tensor: ov.Tensor) -> Node:
    return op.constant(tensor, shared_memory=True)


def _quantised(view: TensorView, scheme: Scheme) -> Node:
    rows, columns = view.shape
    group = scheme.group or columns
    packed = scheme.bits == 4
    if columns % group or (packed and columns % 2):
        raise CheckpointError(f"tensor {view.name} has {columns} columns: groups of {group} do not divide them")
    groups = columns // group
    # A single group is a row: the plugins then want the plain matrix [rows, columns] and scales [rows, 1].
    full, small = ((rows, columns), (rows, 1)) if groups == 1 else ((rows, groups, group), (rows, groups, 1))
    four_bits = ov.Type.u4 if scheme.zero_points else ov.Type.i4
    numbers, number_bytes = _allocate(four_bits if packed else ov.Type.i8, full)
    scales, scale_view = _allocate(ov.Type.f16, small)
    points, point_view = _allocate(ov.Type.f16, small if scheme.zero_points else (0, 1))
    flat = number_bytes.reshape(-1).view(np.uint8)
    row_bytes = columns // 2 if packed else columns
    for start, end, values in chunks(view):
        part = _stored(view, start, end, values, scheme) if scheme.kept else quantise(values, scheme)
        flat[start * row_bytes : end * row_bytes] = (
            pack4(part.numbers) if packed else part.numbers.reshape(-1).view(np.uint8)
        )
        scale_view[start:end] = part.scales.reshape(end - start, *small[1:])
        if part.zero_points is not None:
            point_view[start:end] = part.zero_points.reshape(end - start, *small[1:])
    node = op.convert(_constant(numbers), "f16")
    if scheme.zero_points:
        node = op.subtract(node, _constant(points))
    node = op.multiply(node, _constant(scales))
    if groups != 1:
        node = op.reshape(node, integers(rows, columns), special_zero=False)
    return op.convert(node, "f32")


def _stored(view: TensorView, start: int, end: int, values: Floats, scheme: Scheme) -> Quantised:
    assert view.stored is not None, "only what the checkpoint holds in 4 bits is kept"
    return keep(values, view.stored.grid(start, end), scheme)
