"""How fast a text grows: what a draft that is not worth its time is measured by. Pure; time comes in."""

from __future__ import annotations

_MEMORY_S = 2.0
"""Older than this counts for little: a stream's rate changes with its neighbours."""


class Pace:
    """Ids per second, as an average over the last seconds. 0 until the second commit."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._last: float | None = None

    def commit(self, ids: int, now: float) -> None:
        """`ids` became text at time `now` (seconds, any clock)."""
        if self._last is not None and now > self._last:
            passed = now - self._last
            weight = passed / (passed + _MEMORY_S)
            measured = ids / passed
            self.rate = measured if self.rate == 0 else self.rate + weight * (measured - self.rate)
        self._last = now


def least_survival(rate: float, draft_seconds: float) -> float:
    """The least chance of acceptance at which one more draft pays: what the stream gains meanwhile without it.

    The stop rule of goodput: go on while survival > rate x cost. Bounded, since both are estimates.
    """
    return min(max(rate * draft_seconds, 0.05), 0.5)
