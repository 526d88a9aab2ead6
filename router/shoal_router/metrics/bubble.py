"""How much of the stages' time is a bubble: nothing computed although there is work in the pipeline. Pure.

    bubble = 1 - time that stages computed / (stages x time with a step in flight)

An idle pipeline has none: time counts only while a step is in flight. The sums fade with that time, so that the ratio
is that of the last half minute of work.
"""

from __future__ import annotations

from math import exp
from typing import Final

FADE_SECONDS: Final = 30.0


class Bubble:
    """Invariant: `_since` is when the time that is not in the sums yet began; None while nothing is in flight."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._in_flight = 0
        self._since: float | None = None
        self._busy = 0.0
        self._computed = 0.0

    def submitted(self, now: float) -> None:
        """A step was sent."""
        if not self._in_flight:
            self._since = now
        self._in_flight += 1

    def returned(self, now: float, compute_seconds: float) -> None:
        """A step came back, for which the stages computed that long together."""
        self._in_flight -= 1
        if self._since is not None:
            span = now - self._since
            fade = exp(-span / FADE_SECONDS)
            self._busy = self._busy * fade + span
            self._computed = self._computed * fade + compute_seconds
        self._since = now if self._in_flight else None

    @property
    def ratio(self) -> float:
        """From 0 (every stage always computes) to 1."""
        total = self._stages * self._busy
        return min(max(1 - self._computed / total, 0.0), 1.0) if total else 0.0
