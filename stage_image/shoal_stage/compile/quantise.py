"""Weights to INT4 or INT8, from the data alone. Pure numpy.

`quantise` rounds to nearest, symmetric, one scale a group of columns. `keep` rounds nothing: a checkpoint that holds
4-bit numbers itself keeps them, with its scales and zero points.

The formula of `quantise` is that of NNCF's data-free `compress_weights` (a test compares them). It stands here because
a weight must be quantised a few rows at a time, so that memory never holds more than one weight in its small form: NNCF
needs the whole weight as float, 4 GB for the embedding of a 70B model, and a second a layer for its graph analysis,
however small the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

GROUP_SIZES = (128, 64, 32)

STORED_GROUP = 32
"""Columns that share a scale in every 4-bit format of GGUF."""

_LARGEST_ZERO_POINT = np.float32(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How numbers are stored: `bits` each, one f16 scale for `group` columns, or for a row when `group` is None.

    `kept`: the numbers are the checkpoint's own. `zero_points`: a group has an f16 zero point, too, and its numbers are
    without sign.
    """

    bits: int
    group: int | None
    kept: bool = False
    zero_points: bool = False

    def bytes_of(self, rows: int, columns: int) -> int:
        """Size of a weight in memory."""
        groups = rows * (1 if self.group is None else columns // self.group)
        return -(-rows * columns * self.bits // 8) + (4 if self.zero_points else 2) * groups


@dataclass(frozen=True, slots=True)
class Quantised:
    """Rows of a weight: `numbers` [rows, groups, group], `scales` and `zero_points` [rows, groups, 1].

    A value is (number - zero point) x scale; without zero points number x scale.
    """

    numbers: NDArray[np.int8]
    scales: NDArray[np.float16]
    zero_points: NDArray[np.float16] | None = None

    def restore(self) -> Floats:
        """The values that the numbers stand for, [rows, columns]."""
        values = self.numbers.astype(np.float32)
        if self.zero_points is not None:
            values -= self.zero_points.astype(np.float32)
        values *= self.scales.astype(np.float32)
        return values.reshape(values.shape[0], -1)


@dataclass(frozen=True, slots=True)
class Grid:
    """What the numbers 0 to 15 of rows stand for in the checkpoint: low + number x step, each [rows, groups, 1]."""

    step: Floats
    low: Floats


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


def keep(rows: Floats, grid: Grid, scheme: Scheme) -> Quantised:
    """The numbers of rows [rows, columns] that lie on the grid; nothing is rounded but the zero points, to f16.

    Without zero points the grid must be symmetric: its number 8 stands for 0.
    """
    grouped = rows.reshape(rows.shape[0], -1, STORED_GROUP)
    if not scheme.zero_points:
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = np.nan_to_num(np.rint(grouped / grid.step), posinf=0, neginf=0)
        return Quantised(np.clip(numbers, -8, 7).astype(np.int8), grid.step.astype(np.float16))
    # A group whose values are all but equal: its zero point is beyond f16, so it is one number, 1, of that size.
    flat = np.abs(grid.low) >= _LARGEST_ZERO_POINT * np.abs(grid.step)
    step = np.where(flat, grid.low, grid.step)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.where(flat, np.sign(np.abs(grid.low)), np.rint((grouped - grid.low) / step))
        zero_points = np.where(flat, 0, -grid.low / step)
    return Quantised(np.clip(numbers, 0, 15).astype(np.int8), step.astype(np.float16), zero_points.astype(np.float16))


def pack4(numbers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Two numbers a byte, the first one in the low half: OpenVINO's layout of i4. The count must be even."""
    nibbles = numbers.reshape(-1).view(np.uint8) & np.uint8(0x0F)
    packed: NDArray[np.uint8] = nibbles[0::2] | (nibbles[1::2] << np.uint8(4))
    return packed
