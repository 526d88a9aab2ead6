"""Products of one input made one: queries, keys and values of a layer, gate and up of its MLP.

Besides its arithmetic a product has a fixed cost, which for one row of a small model is a tenth of the whole: the
210 products of 30 layers become 120. A product of a large model takes milliseconds, where the fixed cost is nothing
and a joint weight would be a second copy of mapped memory, so those are left alone. So are other devices than the CPU,
whose plugins do this by themselves.

Every element of a joint product is computed from the same row and the same weights as before: bits do not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import openvino as ov
import openvino.opset15 as op
from numpy.typing import NDArray
from openvino import Node
from openvino.op import Constant

from shoal_stage.compile.graph.nodes import integers, scalar

LARGEST_MERGED: Final = 4 << 20
"""Bytes of numbers of a joint weight: reading as much takes some 50 times the fixed cost of a product."""


@dataclass(frozen=True, slots=True)
class _Quantised:
    """What `shoal_stage.compile.weights` writes: numbers [rows, (groups,) columns], less their zero points if there are
    any, x scales, reshaped to a matrix."""

    numbers: Constant
    scales: Constant
    zero_points: Constant | None
    columns: int

    @property
    def rows(self) -> int:
        return int(self.numbers.get_output_shape(0)[0])

    @property
    def kind(self) -> tuple[object, ...]:
        """Weights of one kind can stand in one constant, row below row."""
        numbers, scales = (tuple(node.get_output_shape(0))[1:] for node in (self.numbers, self.scales))
        has_zero_points = self.zero_points is not None
        return self.numbers.get_element_type(), numbers, self.scales.get_element_type(), scales, has_zero_points

    @property
    def bytes(self) -> int:
        return int(self.numbers.get_byte_size())


def merge_small_products(model: ov.Model, largest: int = LARGEST_MERGED) -> int:
    """Merge in place the products of quantised weights that read the same input, up to `largest` bytes a joint weight.

    Returns by how many the number of products has fallen.
    """
    saved = 0
    for node in model.get_ordered_ops():
        for output in node.outputs():
            products = [
                target.get_node()
                for target in output.get_target_inputs()
                if target.get_index() == 0 and target.get_node().get_type_name() == "MatMul"
            ]
            if len(products) > 1:
                saved += _merge(products, largest)
    if saved:
        model.validate_nodes_and_infer_types()
    return saved


def _merge(products: list[Node], largest: int) -> int:
    weights = [weight for product in products if (weight := _read_weight(product)) is not None]
    if len(weights) < len(products) or len({weight.kind for weight in weights}) > 1:
        return 0
    if sum(weight.bytes for weight in weights) > largest:
        return 0
    rows = [weight.rows for weight in weights]
    joint = op.convert(_stack([weight.numbers for weight in weights]), weights[0].scales.get_element_type())
    if zero_points := [weight.zero_points for weight in weights if weight.zero_points is not None]:
        joint = op.subtract(joint, _stack(zero_points))
    joint = op.multiply(joint, _stack([weight.scales for weight in weights]))
    if joint.get_output_partial_shape(0).rank.get_length() > 2:
        joint = op.reshape(joint, integers(sum(rows), weights[0].columns), special_zero=False)
    product = op.matmul(products[0].input_value(0), op.convert(joint, "f32"), transpose_a=False, transpose_b=True)
    parts = op.variadic_split(product, scalar(-1), integers(*rows))
    for index, old in enumerate(products):
        for target in list(old.output(0).get_target_inputs()):
            target.replace_source_output(parts.output(index))
    return len(products) - 1


def _read_weight(product: Node) -> _Quantised | None:
    """The weight of a product by a transposed quantised matrix; None for any other."""
    attributes = product.get_attributes()
    node = product.input_value(1).get_node()
    if attributes["transpose_a"] or not attributes["transpose_b"] or node.get_type_name() != "Convert":
        return None
    columns = node.get_output_partial_shape(0)[1].get_length()
    node = node.input_value(0).get_node()
    if node.get_type_name() == "Reshape":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Multiply":
        return None
    converted, scales = (node.input_value(index).get_node() for index in (0, 1))
    zero_points = None
    if converted.get_type_name() == "Subtract":
        converted, zero_points = (converted.input_value(index).get_node() for index in (0, 1))
        if not isinstance(zero_points, Constant):
            return None
    if converted.get_type_name() != "Convert" or not isinstance(scales, Constant):
        return None
    numbers = converted.input_value(0).get_node()
    return _Quantised(numbers, scales, zero_points, columns) if isinstance(numbers, Constant) else None


def _stack(constants: list[Constant]) -> Node:
    """One constant of all rows. Bytes are copied as they are: OpenVINO packs two 4-bit numbers into each."""
    shape = list(constants[0].get_output_shape(0))
    shape[0] = sum(constant.get_output_shape(0)[0] for constant in constants)
    tensor = ov.Tensor(constants[0].get_element_type(), ov.Shape(shape))
    whole = _bytes(tensor.data)
    at = 0
    for constant in constants:
        part = _bytes(constant.data)
        whole[at : at + part.size] = part
        at += part.size
    return op.constant(tensor, shared_memory=True)


def _bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
