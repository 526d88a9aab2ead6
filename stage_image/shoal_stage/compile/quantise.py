"""Weights to INT4 or INT8, from the data alone: symmetric, round to nearest, one scale a group of columns. Pure numpy.

The formula is that of NNCF's data-free `compress_weights` (a test compares them). It stands here because a weight must
be quantised a few rows at a time, so that memory never holds more than one weight in its small form: NNCF needs the
whole weight as float, 4 GB for the embedding of a 70B model, and a second a layer for its graph analysis, however
small the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

GROUP_SIZES = (128, 64, 32)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How numbers are stored: `bits` each, one f16 scale for `group` columns, or for a row when `group` is None."""

    bits: int
    group: int | None

    def bytes_of(self, rows: int, columns: int) -> int:
        """Size of a weight in memory."""
        groups = rows * (1 if self.group is None else columns // self.group)
        return -(-rows * columns * self.bits // 8) + 2 * groups


@dataclass(frozen=True, slots=True)
class Quantised:
    """Rows of a weight: `numbers` [rows, groups, group], `scales` [rows, groups, 1]; a value is number x scale."""

    numbers: NDArray[np.int8]
    scales: NDArray[np.float16]

    def restore(self) -> Floats:
        """The values that the numbers stand for, [rows, columns]."""
        values = self.numbers.astype(np.float32) * self.scales.astype(np.float32)
        return values.reshape(values.shape[0], -1)


def choose_group(columns: tuple[int, ...]) -> int | None:
    """The largest usual group that divides every number of columns; None (one scale a row) when none does."""
    return next((size for size in GROUP_SIZES if all(count % size == 0 for count in columns)), None)


_SMALLEST_SCALE = np.float32(np.finfo(np.float32).eps)


def quantise(rows: Floats, scheme: Scheme) -> Quantised:
    """Quantise rows [rows, columns]; the columns must be a multiple of the scheme's group."""
    grouped = rows.reshape(rows.shape[0], -1, scheme.group or rows.shape[1])
    # The scale takes the sign that maps the larger extreme to -2^(bits-1), the number that positives lack.
    top = 1 << (scheme.bits - 1)
    low = np.abs(grouped.min(axis=-1, keepdims=True))
    high = grouped.max(axis=-1, keepdims=True)
    scales = np.where(low >= high, low, -high) / np.float32(top)
    scales = np.where(np.abs(scales) < _SMALLEST_SCALE, _SMALLEST_SCALE, scales)
    # A multiplication by the reciprocal, as NNCF does: a division rounds differently.
    numbers = grouped * (np.float32(1) / scales)
    np.rint(numbers, out=numbers)
    np.clip(numbers, -top, top - 1, out=numbers)
    return Quantised(numbers.astype(np.int8), scales.astype(np.float16))


def pack4(numbers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Two numbers a byte, the first one in the low half: OpenVINO's layout of i4. The count must be even."""
    nibbles = numbers.reshape(-1).view(np.uint8) & np.uint8(0x0F)
    packed: NDArray[np.uint8] = nibbles[0::2] | (nibbles[1::2] << np.uint8(4))
    return packed
