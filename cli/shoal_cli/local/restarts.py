"""How often a process of a local run may be started again before shoal gives up on it."""

from __future__ import annotations

from collections import deque

RESTARTS = 3
WINDOW_S = 300.0


class RestartBudget:
    """At most `limit` restarts within any `window` seconds: a crash in a while is healed, a crash loop is reported."""

    def __init__(self, limit: int = RESTARTS, window: float = WINDOW_S) -> None:
        self._limit = limit
        self._window = window
        self._spent: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Take one restart at time `now` (seconds, any clock); False when there is none left."""
        while self._spent and now - self._spent[0] >= self._window:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(now)
        return True
