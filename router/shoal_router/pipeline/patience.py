"""How long to wait for a step before the pipeline counts as lost. Pure; learned from the steps that came back.

A vanished peer is noticed sooner by the connection itself (keepalive). This bound is for a pipeline that is connected
and silent, so it is generous: a slow stage must not be killed for being slow.
"""

from __future__ import annotations

_FACTOR = 4.0
_DECAY = 0.99


class StepPatience:
    """Allows `floor` seconds, plus a multiple of what the slowest recent step took for each of its tokens."""

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._seconds_per_token = 0.0

    def learn(self, seconds: float, tokens: int) -> None:
        """A step of `tokens` tokens came back `seconds` after it was sent, or after the one before it came back."""
        self._seconds_per_token = max(seconds / max(tokens, 1), self._seconds_per_token * _DECAY)

    def allowed(self, tokens: int) -> float:
        """Seconds without any progress that a step of `tokens` tokens may take."""
        return self._floor + _FACTOR * self._seconds_per_token * tokens
