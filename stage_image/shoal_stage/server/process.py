"""A server as a process: from its first line on stdout to its exit code.

    {"event": "listening", "address": "127.0.0.1:41234"}    as soon as it listens; it loads on
    {"event": "ready", "address": …, …}                     the model is loaded; health says SERVING
    {"event": "draining"}                                   it was ready and is told to stop: another may take over

Exit codes: 0 after SIGTERM or SIGINT, otherwise that of the error, which is the last line on stderr. A server whose
compute thread is gone ends by itself: whoever supervises it starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Protocol

from shoal.errors import ShoalError
from shoal.leave import leave
from shoal.logs import announce

_log = logging.getLogger(__name__)


class Server(Protocol):
    """What a process serves: StageServer, DraftServer."""

    @property
    def settled(self) -> asyncio.Event:
        """Loaded, or failed."""
        ...

    @property
    def failed(self) -> asyncio.Event:
        """It is over, though nobody told it to stop."""
        ...

    @property
    def failure(self) -> ShoalError | None:
        """Why it failed."""
        ...

    def ready(self) -> dict[str, object] | None:
        """What it says of itself when it is ready; None when it is not."""
        ...

    async def start(self, listen: str) -> str:
        """Listen, begin to load; returns the address that others dial."""
        ...

    async def stop(self) -> bool:
        """Drain and close. False when the step in hand did not end in time."""
        ...


async def serve_until_told(server: Server, listen: str) -> int:
    """Serve until a signal or a failure; returns the exit code, or raises the failure."""
    told_to_stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if told_to_stop.is_set():
            os._exit(128 + number)
        _log.info("stopping", extra={"signal": number.name})
        told_to_stop.set()
        if server.ready() is not None:
            announce("draining")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    address = await server.start(listen)
    announce("listening", address=address)
    try:
        await _first(server.settled, told_to_stop)
        facts = server.ready()
        if facts is not None:
            announce("ready", address=address, **facts)
            await _first(server.failed, told_to_stop)
    finally:
        finished = await server.stop()
    if not finished:
        # The compute thread is inside OpenVINO and cannot be stopped: leaving Python in order would wait for it.
        leave(_say(server.failure))
    if server.failure is not None:
        raise server.failure
    return 0


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _say(failure: ShoalError | None) -> int:
    if failure is None:
        return 0
    print(f"error: {failure}", file=sys.stderr)  # noqa: T201 - the command's own output
    return failure.exit_code
