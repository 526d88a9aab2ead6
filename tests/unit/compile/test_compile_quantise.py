"""Quantisation: the bounds of rounding, the packing of halves, the choice of groups."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.errors import UsageError
from shoal.manifest import Precision
from shoal_stage.compile.architecture import Architecture, Rope
from shoal_stage.compile.blocks import storage_for
from shoal_stage.compile.quantise import Scheme, choose_group, pack4, quantise

FLOATS = arrays(np.float32, (3, 64), elements=st.floats(-100, 100, width=32))


@given(FLOATS, st.sampled_from([Scheme(4, 32), Scheme(4, 64), Scheme(8, None), Scheme(8, 32)]))
@settings(max_examples=60, deadline=None)
def test_no_value_moves_by_more_than_a_step(values, scheme):
    grouped = values.reshape(3, -1, scheme.group or 64)
    steps = np.abs(grouped).max(-1, keepdims=True) / (1 << (scheme.bits - 1))
    moved = np.abs(quantise(values, scheme).restore().reshape(grouped.shape) - grouped)
    # Half a step, but a whole one at the end that the signed range lacks; and what f16 costs the scale.
    assert (moved <= steps * 1.01 + np.abs(grouped) * 2e-3 + 1e-4).all()


@given(st.lists(st.integers(-8, 7), min_size=1, max_size=40))
@settings(max_examples=40)
def test_packed_halves_come_back(numbers):
    packed = pack4(np.array(numbers * 2, np.int8))
    tensor = ov.Tensor(ov.Type.i4, [2 * len(numbers)])
    tensor.data.reshape(-1).view(np.uint8)[:] = packed
    back = np.stack([packed & 0xF, packed >> 4], -1).reshape(-1).astype(np.int8)
    assert [value - 16 if value > 7 else value for value in back.tolist()] == numbers * 2


def architecture(hidden: int, ffn: int, heads: int = 4) -> Architecture:
    return Architecture(
        family="llama",
        layers=1,
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn_size=ffn,
        vocab_size=10,
        max_context=10,
        norm_epsilon=1e-5,
        rope=Rope(1e4),
        tied_embeddings=True,
    )


def test_the_largest_group_that_divides_every_weight_is_chosen():
    assert choose_group((4096, 14336)) == 128
    assert choose_group((576, 1536)) == 64
    assert choose_group((96, 64)) == 32
    assert choose_group((100,)) is None
    assert storage_for(architecture(576, 1536), Precision.INT4).layers == Scheme(4, 64)
    assert storage_for(architecture(576, 1536), Precision.INT4).ends == Scheme(8, None)


def test_a_group_that_does_not_divide_is_refused():
    with pytest.raises(UsageError, match="group size 128 does not divide 576"):
        storage_for(architecture(576, 1536), Precision.INT4, 128)
    with pytest.raises(UsageError, match="belongs to INT4"):
        storage_for(architecture(576, 1536), Precision.INT8, 64)
