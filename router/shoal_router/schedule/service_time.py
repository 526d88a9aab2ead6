"""How long a sequence runs, learned from those that ended: the base of the Retry-After that a full queue answers."""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest sequence in the moving average
_SHORTEST = 1.0
_LONGEST = 60.0


class ServiceTime:
    """An exponential moving average of seconds from admission to the end."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def learn(self, seconds: float) -> None:
        """A sequence ended by itself after `seconds`."""
        self._mean = seconds if self._mean is None else (1 - _WEIGHT) * self._mean + _WEIGHT * seconds

    def retry_after(self, waiting: int, slots: int) -> float:
        """Seconds until a queue of `waiting` sequences has drained through `slots`, within sensible bounds."""
        estimate = (self._mean or _SHORTEST) * (waiting + 1) / max(slots, 1)
        return min(max(estimate, _SHORTEST), _LONGEST)
