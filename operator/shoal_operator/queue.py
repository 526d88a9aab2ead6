"""Which ShardedModel is reconciled next, and when again: one at a time each, bursts of events as one, failures slower
each time.

`Schedule` is the pure part, with time as an argument; `WorkQueue` waits for it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shoal_operator.errors import ApiThrottled, OperatorError

Key = tuple[str, str]
"""Namespace and name of a ShardedModel."""

DEBOUNCE_SECONDS: Final = 0.05
FIRST_RETRY: Final = 0.25
LAST_RETRY: Final = 60.0
FOR_PEOPLE_RETRY: Final = 15.0
"""What a person has to mend is not mended in a moment."""


@dataclass(slots=True)
class Schedule:
    """When each key is due. Invariant: a key is in at most one of `due` and `busy`; `again` is a part of `busy`."""

    due: dict[Key, float] = field(default_factory=dict)
    busy: set[Key] = field(default_factory=set)
    again: dict[Key, float] = field(default_factory=dict)
    failures: dict[Key, int] = field(default_factory=dict)
    _heap: list[tuple[float, Key]] = field(default_factory=list)

    def add(self, key: Key, at: float) -> None:
        """Due at `at`, or earlier if it was already. A key that is being worked on is due again afterwards."""
        if key in self.busy:
            self.again[key] = min(at, self.again.get(key, at))
        elif at < self.due.get(key, float("inf")):
            self.due[key] = at
            heapq.heappush(self._heap, (at, key))

    def take(self, now: float) -> Key | None:
        """A key that is due, now being worked on."""
        self._tidy()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self.due[key]
        self.busy.add(key)
        return key

    def next_due(self) -> float | None:
        """When the next key is due."""
        self._tidy()
        return self._heap[0][0] if self._heap else None

    def done(self, key: Key, now: float, look_again: float | None = None) -> None:
        """The work succeeded; `look_again` in so many seconds even if nothing happens."""
        self.failures.pop(key, None)
        self._free(key, None if look_again is None else now + look_again)

    def failed(self, key: Key, now: float, error: Exception) -> float:
        """The work failed; returns in how many seconds it is tried again."""
        count = self.failures[key] = self.failures.get(key, 0) + 1
        wait: float = min(FIRST_RETRY * 2 ** min(count - 1, 20), LAST_RETRY)
        if isinstance(error, OperatorError) and error.for_people:
            wait = max(wait, FOR_PEOPLE_RETRY)
        if isinstance(error, ApiThrottled) and error.retry_after is not None:
            wait = max(wait, min(error.retry_after, LAST_RETRY))
        # What happened meanwhile does not make it come sooner than it should after a failure.
        self.again.pop(key, None)
        self._free(key, now + wait)
        return wait

    def check_integrity(self) -> None:
        """Raises AssertionError when the invariant does not hold."""
        assert not set(self.due) & self.busy
        assert set(self.again) <= self.busy
        assert set(self.due.items()) <= {(key, at) for at, key in self._heap}

    def _free(self, key: Key, at: float | None) -> None:
        self.busy.discard(key)
        wanted = [time for time in (self.again.pop(key, None), at) if time is not None]
        if wanted:
            self.add(key, min(wanted))

    def _tidy(self) -> None:
        while self._heap and self.due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)


class WorkQueue:
    """A Schedule that can be waited for."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.schedule = Schedule()
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._changed = asyncio.Event()

    def add(self, key: Key, after: float = DEBOUNCE_SECONDS) -> None:
        """Due in `after` seconds."""
        self.schedule.add(key, self._clock() + after)
        self._changed.set()

    async def take(self) -> Key:
        """The next key, as soon as it is due."""
        while True:
            self._changed.clear()
            key = self.schedule.take(self._clock())
            if key is not None:
                return key
            due = self.schedule.next_due()
            wait = None if due is None else max(0.0, due - self._clock())
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key, look_again: float | None = None) -> None:
        """See Schedule.done."""
        self.schedule.done(key, self._clock(), look_again)
        self._changed.set()

    def failed(self, key: Key, error: Exception) -> float:
        """See Schedule.failed."""
        wait = self.schedule.failed(key, self._clock(), error)
        self._changed.set()
        return wait

    @property
    def length(self) -> int:
        """Keys that are waiting or being worked on."""
        return len(self.schedule.due) + len(self.schedule.busy)
