"""The stream that a watcher reads: a card when it begins or changes, then a state twice a second while it changes.

    event: card     model and plan
    event: state    pipelines, stages, requests, events; the steps since the last state of this stream

Watchers share one snapshot a tick. Nothing runs while nobody watches.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from shoal.errors import ShoalError
from shoal.page import MOST_WATCHERS
from shoal.plan.document import Plan
from shoal_router.watch.picture import event_of, pipeline_of, request_of, speculation_of, step_of
from shoal_router.watch.rates import Rates
from shoal_router.watch.view import Watched

TICK_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 10.0
"""How long a stream may be silent: then a comment keeps proxies from closing it."""
_CLOCK_STEP_SECONDS: Final = 0.5

CardOf = Callable[[Plan | None], dict[str, Any]]


class TooManyWatchers(ShoalError):
    """As many watch as the router has time for."""


class Watch:
    """Draws `watched`. `read_plan` raises a ShoalError while there is no plan that can be read."""

    def __init__(
        self,
        watched: Watched,
        read_plan: Callable[[], Plan],
        card_of: CardOf,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._watched = watched
        self._read_plan = read_plan
        self._card_of = card_of
        self._clock = clock
        self._wall = wall
        self._tick_seconds = tick_seconds
        self._rates = Rates()
        self._layers = 0
        self._taken = float("-inf")
        self._state = "{}"
        self._offset = wall() - clock()
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End every stream: the router is stopping, and would wait for them."""
        self._closed.set()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events until `close`. Raises TooManyWatchers at once."""
        journal = self._watched.journal
        if journal.watchers >= MOST_WATCHERS:
            raise TooManyWatchers(f"{MOST_WATCHERS} pages watch this router already, which is the most that may")
        with journal.watched():
            card = state = ""
            position, silent = 0, 0.0
            while not self._closed.is_set():
                body = b""
                if (fresh := json.dumps(self._card())) != card:
                    card = fresh
                    body += _event("card", card)
                now = self._clock()
                drawn = self._drawn(now)
                steps = [step_of(step, self._to_wall(now)) for step in journal.steps_since(position)]
                position = journal.steps_seen
                if steps or drawn != state:
                    state = drawn
                    news = json.dumps({"time": self._wall(), "steps": steps})
                    body += _event("state", f"{news[:-1]}, {drawn[1:]}")
                silent = 0.0 if body else silent + self._tick_seconds
                if silent >= QUIET_SECONDS:
                    body, silent = b": quiet\n\n", 0.0
                if body:
                    yield body
                await self._tick()

    async def _tick(self) -> None:
        try:
            async with asyncio.timeout(self._tick_seconds):
                await self._closed.wait()
        except TimeoutError:
            return

    def _card(self) -> dict[str, Any]:
        try:
            plan = self._read_plan()
        except ShoalError:
            return self._card_of(None)  # the pipelines' details say what is wrong with it
        self._layers = plan.layers
        return self._card_of(plan)

    def _to_wall(self, now: float) -> Callable[[float | None], float | None]:
        offset = self._wall() - now
        if abs(offset - self._offset) > _CLOCK_STEP_SECONDS:  # else the same moment would be told differently each time
            self._offset = offset
        return lambda at: None if at is None else round(at + self._offset, 4)

    def _drawn(self, now: float) -> str:
        """The snapshot of this tick as JSON, made for whoever asks first."""
        if now - self._taken < self._tick_seconds / 2:
            return self._state
        self._taken = now
        watched, journal = self._watched, self._watched.journal
        wall = self._to_wall(now)
        known = journal.steps_since(0)
        state = {
            "pipelines": [
                pipeline_of(view, self._rates.take(view, now, known), self._layers) for view in watched.look()
            ],
            "speculation": speculation_of(watched.speculation),
            "recoveries": journal.recoveries,
            "requests": [request_of(record, wall) for record in journal.requests],
            "events": [event_of(event, wall) for event in journal.events],
        }
        self._state = json.dumps(state)
        return self._state


def _event(kind: str, data: str) -> bytes:
    return f"event: {kind}\ndata: {data}\n\n".encode()
