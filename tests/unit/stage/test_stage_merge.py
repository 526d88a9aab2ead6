"""Merging small products: fewer operations, the same bits."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from shoal.manifest import read_manifest
from shoal.wire.messages import Row, SamplingParams, SequenceStart
from shoal_stage.engine import open as opening
from shoal_stage.engine.chain import build_chain
from shoal_stage.engine.merge import merge_small_products
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings

LAYERS = 3
SETTINGS = EngineSettings(sequences=2, max_context=64, threads=1)
START = SequenceStart(SamplingParams(temperature=0.0), 5)


def products(model: ov.Model) -> int:
    return Counter(node.get_type_name() for node in model.get_ordered_ops())["MatMul"]


def logits(directory: Path, kind: EngineKind) -> NDArray[np.float32]:
    """A prompt, then one token beside it: several rows of a product and one."""
    with closing(open_engine(kind, directory, read_manifest(directory), 0, LAYERS + 2, SETTINGS)) as engine:
        prompt = Row(0, 0, 0, (7, 3, 91, 14, 3), 5, sample=True, slot=0, blocks=(0,), start=START)
        first = engine.run([prompt], None).copy()
        second = engine.run([Row(0, 0, 5, (60,), 1, sample=True, slot=0, blocks=(0,))], None)
        return np.concatenate([first, second])


def test_a_layer_keeps_four_of_seven_products(tiny_int4: Path) -> None:
    model = build_chain(tiny_int4, read_manifest(tiny_int4), 0, LAYERS + 2).model
    before = products(model)
    assert before == 7 * LAYERS + 1
    assert merge_small_products(model) == 3 * LAYERS
    assert products(model) == before - 3 * LAYERS
    assert merge_small_products(model) == 0


def test_large_products_are_left_alone(tiny_int4: Path) -> None:
    model = build_chain(tiny_int4, read_manifest(tiny_int4), 0, LAYERS + 2).model
    # q, k, v: (128 + 64 + 64) x 64 numbers of half a byte; gate and up: 2 x 96 x 64.
    assert merge_small_products(model, largest=256 * 64 // 2 - 1) == LAYERS
    assert merge_small_products(model, largest=256 * 64 // 2) == 2 * LAYERS


def test_floats_are_left_alone(tiny_model: Path) -> None:
    assert merge_small_products(build_chain(tiny_model, read_manifest(tiny_model), 0, LAYERS + 2).model) == 0


@pytest.mark.parametrize("kind", [EngineKind.PAGED, EngineKind.STATEFUL])
def test_bits_do_not_change(tiny_int4: Path, kind: EngineKind, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = logits(tiny_int4, kind)
    called: list[ov.Model] = []
    monkeypatch.setattr(opening, "merge_small_products", called.append)
    assert np.array_equal(logits(tiny_int4, kind), merged)
    assert called
