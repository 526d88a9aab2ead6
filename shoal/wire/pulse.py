"""Pulses: how each hop of a ring knows within three seconds that the process at its other end is gone, not only slow.

    router <--pulse-- first stage <--pulse-- … <--pulse-- last stage

A stage sends one with every credit, and one whenever it has been quiet for PULSE_SECONDS. It comes from the event
loop, not from the thread that computes: a step may take minutes, and the stage says all the while that it works on it.
A machine without power, a process that is stopped, a cable that is cut say nothing at all, and TCP would hide that for
minutes.

Whoever listens counts its own ticks without a word instead of seconds on the clock: a listener that was itself
suspended, or starved by other processes, must not blame the other side for it.
"""

from __future__ import annotations

import asyncio
from typing import Final

PULSE_SECONDS: Final = 0.25
STRIKES: Final = 11
"""Ticks in a row without a word. Eleven of a quarter: lost within 2.75 s of the last word, while a link that stands
still for two seconds (Wi-Fi that roams, a retransmission) is forgiven."""


class Strikes:
    """Counts a listener's ticks since the last word from the other side. Pure."""

    def __init__(self, limit: int = STRIKES) -> None:
        self._limit = limit
        self._count = 0

    def heard(self) -> None:
        """A word came, whatever it was."""
        self._count = 0

    def tick(self) -> bool:
        """One more tick went by; True when the other side is out."""
        self._count += 1
        return self._count >= self._limit


async def silence(strikes: Strikes, seconds: float = PULSE_SECONDS) -> None:
    """Return when the other side is out; ticks every `seconds`."""
    while not strikes.tick():  # noqa: ASYNC110 - silence has no event
        await asyncio.sleep(seconds)
