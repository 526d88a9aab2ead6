"""Rates from the differences of counters between two looks. Pure: nothing is counted for them.

A hop's time is what remains of a step's round trip when every stage's computing and queueing is taken off, shared by
the hops: the clocks of different machines need not agree for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.wire.messages import StageTiming, outside_stages
from shoal_router.watch.journal import StepRecord
from shoal_router.watch.view import PipelineView

WINDOW_SECONDS: Final = 3.0
"""Long enough that a rate of a few tokens a second does not flicker, short enough to see it change."""


@dataclass(frozen=True, slots=True)
class PipelineRates:
    """Of one pipeline over the last seconds; None where there is nothing to say yet."""

    tokens: float | None = None
    steps: float | None = None
    step_ms: float | None = None
    hop_ms: float | None = None
    stages: tuple[dict[str, float | None], ...] = ()

    def stage(self, index: int) -> dict[str, float | None]:
        """Load (share of the time in which it computed) and means per step of one stage, in ms."""
        if index < len(self.stages):
            return self.stages[index]
        return {"load": None, "computeMs": None, "queueMs": None, "idleMs": None, "sendMs": None}


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    epoch: int
    generated: int
    steps: int
    timings: tuple[StageTiming, ...]


class Rates:
    """Invariant: the looks of a pipeline are of one epoch, in order, and no older than the window but for the first."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._looks: dict[int, deque[_Look]] = {}

    def take(self, view: PipelineView, now: float, steps: Iterable[StepRecord] = ()) -> PipelineRates:
        """Add a look and give the rates since the oldest one that is kept; `steps`: those that are still known."""
        status = view.status
        looks = self._looks.setdefault(status.index, deque())
        if looks and (looks[-1].epoch != status.epoch or now - looks[-1].at > self._window):
            looks.clear()  # other counters, or nobody has looked for a while
        looks.append(_Look(now, status.epoch, view.generated, status.steps, status.timings))
        while len(looks) > 2 and now - looks[1].at >= self._window:
            looks.popleft()
        first, last = looks[0], looks[-1]
        if last.at <= first.at:
            return PipelineRates()
        seconds, count = last.at - first.at, last.steps - first.steps
        recent = [step for step in steps if step.pipeline == status.index and step.received >= now - self._window]
        return PipelineRates(
            tokens=(last.generated - first.generated) / seconds,
            steps=count / seconds,
            step_ms=_mean([(step.received - step.sent) * 1e3 for step in recent]),
            hop_ms=_mean([hop_ms(step) for step in recent]),
            stages=_stages(first.timings, last.timings, count, seconds),
        )


def hop_ms(step: StepRecord) -> float:
    """What one hop of the ring took on the mean in this step."""
    return outside_stages(step.timings, step.received - step.sent) * 1e3 / (len(step.timings) + 1)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _stages(
    before: Sequence[StageTiming], after: Sequence[StageTiming], steps: int, seconds: float
) -> tuple[dict[str, float | None], ...]:
    if len(before) != len(after):
        before = tuple(StageTiming(timing.stage, 0) for timing in after)  # no step had come back at the first look
    found = []
    for was, now in zip(before, after, strict=True):
        compute, queue, idle, send = (
            (getattr(now, name) - getattr(was, name)) / 1e3 for name in ("compute_us", "queue_us", "idle_us", "send_us")
        )
        each = [value / steps if steps else None for value in (compute, queue, idle, send)]
        load = min(compute / 1e3 / seconds, 1.0)
        found.append(dict(zip(("load", "computeMs", "queueMs", "idleMs", "sendMs"), (load, *each), strict=True)))
    return tuple(found)
