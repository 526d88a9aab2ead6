"""Ctrl-C, SIGTERM and a closed terminal while asyncio runs: cancel, clean up, exit with 128 + signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, with `work` cancelled by each of `STOP_SIGNALS`.

    A second signal cancels again, and so interrupts what cleans up after the first one. Exits the program with
    128 + the first signal once `work` has ended.
    """
    caught: list[int] = []

    async def supervised() -> T:
        task = asyncio.current_task()
        assert task is not None

        def on_signal(number: int) -> None:
            caught.append(number)
            task.cancel()

        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        if not caught:
            raise
        sys.exit(128 + caught[0])
