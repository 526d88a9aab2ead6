"""How long a step may take before the device counts as hung. Pure; learned from the steps that were run.

A stage whose process vanished is noticed by its pulses within seconds (wire/pulse); this bound is for a process that
lives, sends pulses and does not get on with its step. So it is generous: a slow stage must not be killed for being
slow. The stage itself holds to it; the router, which sees less, waits `ROUTER_MARGIN` longer, so that whoever knows
which device hangs says so first.
"""

from __future__ import annotations

from typing import Final

FIRST_STEP_SECONDS: Final = 120.0
"""Before anything was measured: a device may compile its kernels in the first step."""

LEAST_SECONDS: Final = 30.0
"""The least that is allowed later, however fast the steps were: a shape that is new may be compiled, too."""

ROUTER_MARGIN: Final = 15.0

_FACTOR = 4.0
_DECAY = 0.99


class StepPatience:
    """Allows `first` seconds until a step was measured, then `least` and a multiple of what the slowest recent step
    took for each of its tokens."""

    def __init__(self, first: float = FIRST_STEP_SECONDS, least: float = LEAST_SECONDS) -> None:
        self._first = first
        self._least = min(least, first)
        self._seconds_per_token = 0.0

    def learn(self, seconds: float, tokens: int) -> None:
        """A step of `tokens` tokens took `seconds`."""
        self._seconds_per_token = max(seconds / max(tokens, 1), self._seconds_per_token * _DECAY)

    def allowed(self, tokens: int) -> float:
        """Seconds without any progress that a step of `tokens` tokens may take."""
        if not self._seconds_per_token:
            return self._first
        return self._least + _FACTOR * self._seconds_per_token * tokens
