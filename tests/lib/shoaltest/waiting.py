"""Waiting in tests, in one place: for what has no event of its own; never for a time, and never without a deadline.

`until` waits for what happens on the loop itself and misses no state of it, however short. `until_elsewhere` waits for
what threads, other processes or the disk do, and leaves them the processor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

T = TypeVar("T")
Condition = Callable[[], T | Awaitable[T]]

SECONDS = 20.0
_PAUSE_SECONDS = 0.005


async def until(condition: Condition[T], seconds: float = SECONDS) -> T:
    """The first true value of the condition, looked at in every turn of the loop; TimeoutError after `seconds`."""
    return await _first(condition, seconds, pause=0.0)


async def until_elsewhere(condition: Condition[T], seconds: float = SECONDS) -> T:
    """The first true value of the condition, looked at every few milliseconds; TimeoutError after `seconds`."""
    return await _first(condition, seconds, _PAUSE_SECONDS)


async def _first(condition: Condition[T], seconds: float, pause: float) -> T:
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            value = await found if isawaitable(found) else found
            if value:
                return value
            await asyncio.sleep(pause)
