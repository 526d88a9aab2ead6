"""The end of a task that runs beside others until whoever started it stops it."""

from __future__ import annotations

import asyncio


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel it and wait until it is over; raises what it failed with. None, and one that is over, are fine.

    Who is cancelled while waiting is cancelled: `await task` within suppress(CancelledError) would swallow that.
    """
    if task is None:
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
