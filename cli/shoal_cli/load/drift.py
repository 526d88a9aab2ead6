"""Figures of a load that goes on for long: windows of time, and how its last third differs from its first. Pure.

A piece of text counts in the window in which it came, whatever the answer's beginning and end; so does a failure. The
thirds are of what follows a warm-up, a tenth of the time, in which caches fill and memory is first touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal_cli.load.figures import Sample, Spread, spread

WINDOW_SECONDS = 30.0
_LEAST_WINDOWS = 10
_WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer; seconds from the beginning of the load to its request and to its end."""

    began: float
    ended: float
    sample: Sample


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read at one moment: KV blocks that sequences hold, MiB that each process holds."""

    at: float
    kv_blocks: int | None = None
    memory: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A span of the load. `lost`: of the failures, answers that had begun. Levels are means; None, {} where unread."""

    start: float
    seconds: float
    answers: int
    failed: int
    lost: int
    tokens_per_second: float
    ttft: Spread | None
    itl: Spread | None
    kv_blocks: float | None
    memory: dict[str, float]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure in the first third and in the last."""

    first: float
    last: float

    @property
    def ratio(self) -> float:
        """Last over first; `first` is above 0."""
        return self.last / self.first


@dataclass(frozen=True, slots=True)
class Soak:
    """All of a long load."""

    windows: list[Window]
    changes: dict[str, Change]
    answers: int
    failed: int
    lost: int
    first_error: str = ""


def window_seconds(seconds: float) -> float:
    """How wide a window of a load of so many seconds is: narrower than usual only where there would be few."""
    return min(WINDOW_SECONDS, seconds / _LEAST_WINDOWS)


def window_starts(seconds: float) -> list[float]:
    """Where the windows of such a load begin."""
    width = window_seconds(seconds)
    return [number * width for number in range(round(seconds / width))]


def window_of(asked: Sequence[Asked], readings: Sequence[Reading], start: float, end: float) -> Window:
    """The figures of what happened from `start` until before `end`."""
    tokens, firsts, gaps = 0.0, [], []
    for each in asked:
        if each.ended < start or each.began >= end or not each.sample.pieces:
            continue
        pieces = each.sample.pieces
        # Usage says the tokens of a whole answer; a piece holds its share of them. One that broke off has no usage.
        share = each.sample.tokens / len(pieces) if each.sample.tokens else 1.0
        came = [each.began + piece for piece in pieces]
        tokens += share * sum(start <= at < end for at in came)
        if start <= came[0] < end:
            firsts.append(pieces[0])
        gaps += [later - earlier for earlier, later in pairwise(came) if start <= later < end]
    ended = [each.sample for each in asked if start <= each.ended < end]
    read = [each for each in readings if start <= each.at < end]
    held = [each.kv_blocks for each in read if each.kv_blocks is not None]
    return Window(
        start=start,
        seconds=end - start,
        answers=sum(not sample.error for sample in ended),
        failed=sum(bool(sample.error) for sample in ended),
        lost=sum(bool(sample.error and sample.pieces) for sample in ended),
        tokens_per_second=tokens / (end - start),
        ttft=spread(firsts),
        itl=spread(gaps),
        kv_blocks=sum(held) / len(held) if held else None,
        memory=_means(read),
    )


def soak_of(asked: Sequence[Asked], readings: Sequence[Reading], seconds: float) -> Soak:
    """The figures of a load that began at 0 and was kept up for `seconds`; its last answers may have ended later."""
    width = window_seconds(seconds)
    warm = seconds * _WARM_UP_SHARE
    third = (seconds - warm) / 3
    return Soak(
        windows=[window_of(asked, readings, start, start + width) for start in window_starts(seconds)],
        changes=changes(
            window_of(asked, readings, warm, warm + third), window_of(asked, readings, seconds - third, seconds)
        ),
        answers=sum(not each.sample.error for each in asked),
        failed=sum(bool(each.sample.error) for each in asked),
        lost=sum(bool(each.sample.error and each.sample.pieces) for each in asked),
        first_error=next((each.sample.error for each in asked if each.sample.error), ""),
    )


def changes(first: Window, last: Window) -> dict[str, Change]:
    """By figure; what either of the two lacks, or is 0 in the first, is left out."""
    after = dict(_figures(last))
    return {name: Change(value, after[name]) for name, value in _figures(first) if value > 0 and name in after}


def _figures(window: Window) -> Iterator[tuple[str, float]]:
    yield "tokens_per_s", window.tokens_per_second
    for name, found in (("ttft", window.ttft), ("itl", window.itl)):
        if found is not None:
            yield f"{name}_p50", found.p50
            yield f"{name}_p99", found.p99
    if window.kv_blocks is not None:
        yield "kv_blocks", window.kv_blocks
    for process, held in window.memory.items():
        yield f"memory.{process}", held


def _means(readings: Sequence[Reading]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for reading in readings:
        for name, held in (reading.memory or {}).items():
            found.setdefault(name, []).append(held)
    return {name: sum(values) / len(values) for name, values in found.items()}
