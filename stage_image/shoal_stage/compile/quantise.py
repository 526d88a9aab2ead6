"""Weights to INT4 or INT8, from the data alone: round to nearest, one scale a group of columns. Pure numpy.

The formulas are those of NNCF's data-free `compress_weights`, bit for bit (a test compares them). They stand here
because a weight must be quantised a few rows at a time, so that memory never holds more than one weight in its small
form: NNCF needs the whole weight as float, 4 GB for the embedding of a 70B model, and a second a layer for its graph
analysis, however small the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

GROUP_SIZES = (128, 64, 32)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How numbers are stored: `bits` each, one scale (and zero point unless symmetric) for `group` columns or a row."""

    bits: int
    symmetric: bool
    group: int | None

    def bytes_of(self, rows: int, columns: int) -> int:
        """Size of a weight in memory: the numbers, f16 scales, zero points."""
        groups = rows * (1 if self.group is None else columns // self.group)
        zero_points = 0 if self.symmetric else -(-groups * self.bits // 8)
        return -(-rows * columns * self.bits // 8) + 2 * groups + zero_points


@dataclass(frozen=True, slots=True)
class Quantised:
    """Rows of a weight: `numbers` [rows, groups, group], `scales` and `zero_points` [rows, groups, 1].

    value = (number - zero_point) x scale. Numbers are i8 when symmetric, else u8, whatever their bits.
    """

    numbers: NDArray[np.int8] | NDArray[np.uint8]
    scales: NDArray[np.float16]
    zero_points: NDArray[np.uint8] | None

    def restore(self) -> Floats:
        """The values that the numbers stand for, [rows, columns]."""
        values = self.numbers.astype(np.float32)
        if self.zero_points is not None:
            values -= self.zero_points.astype(np.float32)
        values *= self.scales.astype(np.float32)
        return values.reshape(values.shape[0], -1)


def choose_group(columns: tuple[int, ...]) -> int | None:
    """The largest usual group that divides every number of columns; None (one scale a row) when none does."""
    return next((size for size in GROUP_SIZES if all(count % size == 0 for count in columns)), None)


def quantise(rows: Floats, scheme: Scheme) -> Quantised:
    """Quantise rows [rows, columns]; the columns must be a multiple of the scheme's group."""
    grouped = rows.reshape(rows.shape[0], -1, scheme.group or rows.shape[1])
    return _symmetric(grouped, scheme.bits) if scheme.symmetric else _asymmetric(grouped, scheme.bits)


_TINY = float(np.finfo(np.float32).eps)


def _symmetric(grouped: Floats, bits: int) -> Quantised:
    # The scale takes the sign that maps the larger extreme to -2^(bits-1), the number that positives lack.
    top = 1 << (bits - 1)
    low = np.abs(grouped.min(axis=-1, keepdims=True))
    high = grouped.max(axis=-1, keepdims=True)
    scales = np.where(low >= high, low, -high) / np.float32(top)
    scales = np.where(np.abs(scales) < _TINY, np.float32(_TINY), scales)
    # A multiplication by the reciprocal, as NNCF does, not a division: they round differently.
    numbers = np.rint(grouped * (np.float32(1) / scales))
    np.clip(numbers, -top, top - 1, out=numbers)
    return Quantised(numbers.astype(np.int8), scales.astype(np.float16), None)


def _asymmetric(grouped: Floats, bits: int) -> Quantised:
    top = (1 << bits) - 1
    low = grouped.min(axis=-1, keepdims=True)
    high = grouped.max(axis=-1, keepdims=True)
    scales = (high - low) / np.float32(top)
    scales = np.where(np.abs(scales) < _TINY, np.float32(_TINY), scales)
    zero_points = np.clip(np.rint(-low / scales), 0, top)
    numbers = np.rint(grouped * (np.float32(1) / scales) + zero_points)
    np.clip(numbers, 0, top, out=numbers)
    return Quantised(numbers.astype(np.uint8), scales.astype(np.float16), zero_points.astype(np.uint8))


def pack4(numbers: NDArray[np.int8] | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two numbers a byte, the first one in the low half: OpenVINO's layout of i4 and u4. The count must be even."""
    nibbles = numbers.reshape(-1).view(np.uint8) & 0x0F
    return nibbles[0::2] | (nibbles[1::2] << 4)
