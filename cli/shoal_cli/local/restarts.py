"""When a process of a local run is started again after it ended. Pure: time is an argument.

The same rule as a cluster's: at once the first time, then after pauses that double, up to half a minute; a process that
stayed up for a while begins anew. One difference: a process that does not come up at all, several times in a row, ends
the run with its reason. A person waits at the terminal, and what is broken will not mend itself.
"""

from __future__ import annotations

ATTEMPTS = 3
"""Starts in a row that may fail before the process was ready."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0

STANDBY_PAUSE_S = 2.0
"""What is replaced comes back as a standby, which is not urgent: loading must not slow down the answers' recovery."""


class Restarts:
    """The history of one process, which is starting. Call `ready` when it is, `pause` when it has ended."""

    def __init__(self, longest_pause: float = LONGEST_PAUSE_S, standby_pause: float = STANDBY_PAUSE_S) -> None:
        self._longest_pause = longest_pause
        self._standby_pause = standby_pause
        self._pause = 0.0
        self._failed = 0
        self._ready_at: float | None = None

    def ready(self, now: float) -> None:
        """It came up."""
        self._failed = 0
        self._ready_at = now

    def pause(self, now: float, *, replaced: bool = False) -> float | None:
        """Seconds until it is to be started again; None when that has been tried often enough.

        `replaced`: another process has its place already.
        """
        if self._ready_at is None:
            self._failed += 1
            if self._failed >= ATTEMPTS:
                return None
        elif now - self._ready_at >= STEADY_S:
            self._pause = 0.0
        self._ready_at = None
        pause = self._pause
        self._pause = min(max(2 * pause, FIRST_PAUSE_S), self._longest_pause)
        return max(pause, self._standby_pause) if replaced else pause
