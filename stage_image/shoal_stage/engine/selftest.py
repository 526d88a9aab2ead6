"""A start-up test of what was loaded: does this device compute, remember and roll back as it should?

Some drivers compute garbage without an error (openvino#38100). Each engine runs some tokens as one row, the last again
one after the other, and again after a rollback: the answers must agree. On devices other than the CPU the stage's first
blocks are also compared with the CPU in f32. The row is a KV page and two tokens long, so that what is decoded lies on
both sides of a page's end. This warms the device up for decoding, too. Devices compile anew for each number of tokens,
so there are only two: the whole row, and one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ResourceError
from shoal.wire.messages import Row, SamplingParams, SequenceStart
from shoal_stage.engine.interface import Engine

_BEYOND_PAGE = 2
_DECODED, _CUT = 4, 2
"""How many of the last tokens are decoded one by one, and how many of them a second time."""
_SEQ = 0
_LEAST_COSINE = 0.97


def check_memory(engine: Engine, *, first: bool) -> None:
    """Raises ResourceError when token after token, or after a rollback, gives other answers than one whole row."""
    tokens = _row_length(engine)
    decoded, cut = max(tokens - _DECODED, 0), max(tokens - _CUT, 0)
    whole = _run(engine, first, 0, tokens)
    _compare(engine, "one after the other", whole[decoded:], _one_by_one(engine, first, decoded))
    _one_by_one(engine, first, cut, other=True)
    _compare(engine, "after a rollback", whole[cut:], _one_by_one(engine, first, cut))
    engine.release((_SEQ,))


def check_against(engine: Engine, reference: Engine, *, first: bool) -> None:
    """Raises ResourceError when `engine` computes something else than `reference`, which holds the same blocks."""
    tokens = min(_row_length(engine), _row_length(reference))
    expected = _run(reference, first, 0, tokens)
    reference.release((_SEQ,))
    _compare(engine, "compared with the CPU", expected, _run(engine, first, 0, tokens))
    engine.release((_SEQ,))


def _row_length(engine: Engine) -> int:
    capacity = engine.capacity
    return min(capacity.block_size + _BEYOND_PAGE, capacity.blocks * capacity.block_size, capacity.max_context)


def _one_by_one(engine: Engine, first: bool, start: int, *, other: bool = False) -> NDArray[np.float32]:
    steps = [_run(engine, first, at, at + 1, other=other) for at in range(start, _row_length(engine))]
    return np.concatenate(steps)


def _run(engine: Engine, first: bool, start: int, end: int, *, other: bool = False) -> NDArray[np.float32]:
    info, tokens = engine.info, _row_length(engine)
    rng = np.random.default_rng(int(other))
    ids = rng.integers(0, info.vocab_size, tokens)[start:end]
    hidden = rng.normal(0, 1, (tokens, info.hidden_size)).astype(np.float32)[start:end]
    # Nothing is known, so that the last stage gives logits for every position.
    row = Row(
        seq=_SEQ,
        version=0,
        past_len=start,
        tokens=tuple(int(token) for token in ids),
        known=0,
        sample=True,
        slot=0,
        blocks=tuple(range(-(-tokens // engine.capacity.block_size))),
        start=SequenceStart(SamplingParams(temperature=0.0), tokens) if start == 0 else None,
    )
    return engine.run((row,), None if first else hidden).copy()


def _compare(engine: Engine, how: str, expected: NDArray[np.float32], found: NDArray[np.float32]) -> None:
    where = f"device {engine.info.device}"
    if not np.isfinite(found).all():
        raise ResourceError(f"{where} fails its self-test: it computes values that are no numbers; update its driver")
    a, b = expected.astype(np.float64), found.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = float(((a * b).sum(axis=1) / np.maximum(norms, 1e-30)).min())
    if cosine < _LEAST_COSINE:
        raise ResourceError(
            f"{where} fails its self-test: the same tokens {how} give another answer "
            f"(cosine {cosine:.3f}, {_LEAST_COSINE} is due); update its driver or choose another device"
        )
