"""Figures of a load test. Pure.

TTFT: from the request to the first text; ITL: between two pieces of text that follow each other; TPOT: an answer's mean
time of a token after its first; throughput: tokens of all answers over the wall time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: seconds from its request, of each piece of text; `error` if it failed, after those."""

    pieces: tuple[float, ...] = ()
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some times, in ms."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Point:
    """One concurrency and prompt length. `tokens_per_second` of all answers; None where nothing was measured."""

    concurrency: int
    prompt_tokens: int
    requests: int
    failed: int
    seconds: float
    tokens_per_second: float
    requests_per_second: float
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    first_error: str = ""


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the neighbours, as numpy has it. `values` not empty."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def spread(seconds: Iterable[float]) -> Spread | None:
    """Percentiles in ms; None of nothing."""
    values = [value * 1e3 for value in seconds]
    return Spread(*(percentile(values, share) for share in (0.5, 0.9, 0.99))) if values else None


def point_of(samples: Sequence[Sample], *, concurrency: int, seconds: float) -> Point:
    """The figures of the answers of one point, which took `seconds` together."""
    good = [sample for sample in samples if not sample.error and sample.pieces]
    longer = [sample for sample in good if sample.tokens > 1 and len(sample.pieces) > 1]
    lengths = [sample.prompt_tokens for sample in good]
    return Point(
        concurrency=concurrency,
        prompt_tokens=round(sum(lengths) / len(lengths)) if lengths else 0,
        requests=len(samples),
        failed=len(samples) - len(good),
        seconds=seconds,
        tokens_per_second=sum(sample.tokens for sample in good) / seconds,
        requests_per_second=len(good) / seconds,
        ttft=spread(sample.pieces[0] for sample in good),
        itl=spread(
            after - before for sample in good for before, after in zip(sample.pieces, sample.pieces[1:], strict=False)
        ),
        tpot=spread((sample.pieces[-1] - sample.pieces[0]) / (sample.tokens - 1) for sample in longer),
        first_error=next((sample.error for sample in samples if sample.error), ""),
    )
