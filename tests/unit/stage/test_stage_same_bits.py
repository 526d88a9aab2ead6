"""Exact mode on the paged engine: a token's logits have the same bits however its row was cut, batched or drafted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.manifest import read_manifest
from shoal.wire.messages import Row, SamplingParams, SequenceStart
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.same_bits import PIECE, SameBits
from shoal_stage.engine.settings import EngineKind, EngineSettings

LENGTH = 100
TEXT = tuple(int(token) for token in np.random.default_rng(3).integers(0, 96, LENGTH))
TABLES = {seq: tuple(range(seq * 4, seq * 4 + 4)) for seq in range(4)}
START = SequenceStart(SamplingParams(temperature=0.0), LENGTH)


@pytest.fixture(
    scope="module",
    params=[("tiny_model", (0, 5)), ("tiny_model", (0, 2, 5)), ("tiny_int4", (0, 5))],
    ids=["F32 in one stage", "F32 in two", "INT4"],
)
def stages(request: pytest.FixtureRequest) -> Iterator[list[Engine]]:
    settings = EngineSettings(exact=True, sequences=4, max_context=128, threads=1)
    model, cuts = request.param
    directory: Path = request.getfixturevalue(model)
    manifest = read_manifest(directory)
    engines = [open_engine(EngineKind.PAGED, directory, manifest, *cut, settings) for cut in pairwise(cuts)]
    assert all(isinstance(engine, SameBits) for engine in engines)
    yield engines
    for engine in engines:
        with closing(engine):
            pass


def run(stages: Sequence[Engine], *rows: Row) -> NDArray[np.float32]:
    hidden = None
    for engine in stages:
        hidden = engine.run(rows, hidden).copy()
    assert hidden is not None
    return hidden


def row(seq: int, start: int, end: int, known: int | None = None) -> Row:
    """Tokens [start, end) of TEXT; all of them known unless said."""
    count = end - start if known is None else known
    tables = TABLES[seq][: -(-end // 32)]
    return Row(seq, 0, start, TEXT[start:end], count, sample=True, blocks=tables, start=START if start == 0 else None)


@pytest.fixture(scope="module")
def every(stages: list[Engine]) -> NDArray[np.float32]:
    """Logits of all positions, of one row whose tokens are all drafts."""
    return run(stages, row(0, 0, LENGTH, known=0))


@pytest.mark.parametrize("length", [1, 2, PIECE - 1, PIECE, PIECE + 1, 64, LENGTH - 1, LENGTH])
def test_chunks(stages: list[Engine], every: NDArray[np.float32], length: int) -> None:
    for start in range(0, LENGTH, length):
        end = min(start + length, LENGTH)
        assert np.array_equal(run(stages, row(1, start, end)), every[end - 1 : end])


def test_batch_mates(stages: list[Engine], every: NDArray[np.float32]) -> None:
    for seq, past in ((0, 31), (1, 40), (2, 63)):
        run(stages, row(seq, 0, past))
    out = run(stages, row(0, 31, 32), row(3, 0, 70), row(1, 40, 41), row(2, 63, 65))
    assert np.array_equal(out, every[[31, 69, 40, 64]])
    # The copy behind position 31 and 63 must not have written into anybody's page.
    assert np.array_equal(run(stages, row(1, 41, 42), row(2, 65, 66), row(0, 32, 33)), every[[41, 65, 32]])


@pytest.mark.parametrize("known", [0, 1, 2, 31, 32, 33, 40])
def test_drafts_across_the_border_of_a_piece(stages: list[Engine], every: NDArray[np.float32], known: int) -> None:
    run(stages, row(0, 0, 10))
    assert np.array_equal(run(stages, row(0, 10, 50, known)), every[10 + max(known - 1, 0) : 50])


def test_a_row_that_draws_nothing_gives_nothing(stages: list[Engine]) -> None:
    silent = Row(0, 0, 0, TEXT[:40], 40, sample=False, blocks=TABLES[0][:2], start=START)
    assert run(stages, silent).shape == (0, 96)
