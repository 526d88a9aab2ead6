"""The thread that owns an engine: loads it, works through what is queued, closes it, and is never lost unheard.

    event loop  --inbox (SimpleQueue, a blocking get: no polling)-->  this thread
    event loop  <--call_soon_threadsafe--  loaded | what the work tells | dead

Everything that touches the engine happens here and nowhere else. OpenVINO lets go of the GIL during a pass, so the
event loop receives and sends while this thread computes. Whatever ends the thread is reported: a process whose compute
thread is gone must say so and die, not answer health checks for ever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from shoal.errors import ShoalError
from shoal.wire.errors import StageFailed
from shoal_stage.engine.interface import Engine

Job = TypeVar("Job")

_LOOK_SECONDS = 2.0


class Listener(Protocol):
    """Who hears of the thread's life. All calls are made on the event loop."""

    def loaded(self, engine: Engine) -> None:
        """The engine is ready."""
        ...

    def dead(self, error: ShoalError) -> None:
        """The thread ended on its own: the process is over."""
        ...


class EngineThread(ABC, Generic[Job]):
    """Invariant: between `start` and `stop` either the thread runs or `dead` was, or is about to be, called."""

    def __init__(self, load: Callable[[], Engine], listener: Listener) -> None:
        self._load = load
        self._life = listener
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name="compute", daemon=True)
        self._stopping = False
        self._busy_since: float | None = None
        self._done = asyncio.Event()

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def busy_seconds(self) -> float:
        """How long the step in hand has been running; 0 when none is."""
        since = self._busy_since
        return 0.0 if since is None else time.perf_counter() - since

    async def hang(self, limit: Callable[[], float]) -> StageFailed:
        """Liveness by progress, since a device may hang without any exception: returns when a step exceeds `limit`,
        which may differ from step to step."""
        while self.busy_seconds() <= (allowed := limit()):  # noqa: ASYNC110 - a step that hangs sends no event
            await asyncio.sleep(min(allowed / 8, _LOOK_SECONDS))
        return StageFailed(f"a step has been running for over {allowed:.0f} s: the device hangs")

    @property
    def ident(self) -> int | None:
        """The thread's id while it runs."""
        return self._thread.ident if self._thread.is_alive() else None

    async def stop(self, timeout: float) -> bool:
        """Finish the step in hand, drop what is queued, close the engine. False when that took too long."""
        self._stopping = True
        self._inbox.put(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._done.wait()
        return self._done.is_set()

    @abstractmethod
    def _serve(self, engine: Engine) -> None:
        """Work through the inbox until None comes or `_stopping` is set. Runs on the thread."""

    def _main(self) -> None:
        error: ShoalError | None = None
        try:
            engine = self._load()
            try:
                self._tell(self._life.loaded, engine)
                self._serve(engine)
            finally:
                engine.close()
        except ShoalError as known:
            error = known
        except BaseException as unknown:  # noqa: BLE001 - nothing may end this thread unheard; the process dies of it
            error = StageFailed(f"the compute thread ended: {type(unknown).__name__}: {unknown}")
        finally:
            if not self._stopping:
                self._tell(self._life.dead, error or StageFailed("the compute thread ended without an error"))
            self._tell(self._done.set)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
