"""Keeps a load up for long: as many users all the time, each asking again as soon as it is answered.

Whoever calls it says what else is read meanwhile: of an endpoint its KV blocks, of a pipeline on this machine the
memory of its processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle

from shoal.errors import ShoalError, UsageError
from shoal_cli.client import RouterClient
from shoal_cli.load.drift import Asked, Reading, Soak, Window, soak_of, window_of, window_seconds, window_starts
from shoal_cli.load.figures import Sample
from shoal_cli.load.run import Heard, ask, calibrate, prompt_of

_READINGS_A_WINDOW = 10
_AFTER_A_FAILURE = 1.0
"""Seconds until a user who was refused asks again: an endpoint that is down must not be hammered."""

Levels = tuple[int | None, Mapping[str, float]]
"""KV blocks held, MiB by process."""


@dataclass(frozen=True, slots=True)
class SoakLoad:
    """`users` at a time for `seconds`, with prompts of these lengths in turn."""

    users: int
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    seconds: float
    seed: int = 0


@dataclass(slots=True)
class _Record:
    """All that happened so far. `open`: answers under way, with the moments at which their requests were sent."""

    began: float = field(default_factory=time.perf_counter)
    asked: list[Asked] = field(default_factory=list)
    open: dict[int, tuple[float, Heard]] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)

    def now(self) -> float:
        return time.perf_counter() - self.began

    def everything(self) -> list[Asked]:
        """What was answered, and of what is under way the pieces that came."""
        now = self.now()
        return self.asked + [Asked(began, now, Sample(tuple(heard))) for began, heard in self.open.values()]


async def run_soak(
    client: RouterClient,
    model: str,
    load: SoakLoad,
    each: Callable[[Window], None],
    read: Callable[[], Awaitable[Levels]],
) -> Soak:
    """Keep the load up; `each` window as soon as it is over. Raises a ShoalError if nothing answers at all."""
    draw = random.Random(load.seed)
    words_for = await calibrate(client, model, draw)
    words = cycle([words_for(length) for length in load.prompt_tokens])
    record = _Record()

    async def user(number: int) -> None:
        while (began := record.now()) < load.seconds:
            heard: Heard = []
            record.open[number] = (began, heard)
            sample = await ask(client, model, prompt_of(draw, next(words)), load.max_tokens, heard)
            del record.open[number]
            record.asked.append(Asked(began, record.now(), sample))
            if sample.error:
                await asyncio.sleep(min(_AFTER_A_FAILURE, load.seconds - record.now()))

    reading = asyncio.create_task(_read(record, load.seconds, read, each))
    users = [asyncio.create_task(user(number)) for number in range(load.users)]
    try:
        await asyncio.gather(reading, *users)
    finally:
        for task in (reading, *users):
            task.cancel()
        await asyncio.gather(reading, *users, return_exceptions=True)
    soak = soak_of(record.asked, record.readings, load.seconds)
    if soak.failed and not soak.answers:
        raise UsageError(f"every request failed: {soak.first_error}")
    return soak


async def _read(
    record: _Record, seconds: float, read: Callable[[], Awaitable[Levels]], each: Callable[[Window], None]
) -> None:
    width = window_seconds(seconds)
    for start in window_starts(seconds):
        for part in range(_READINGS_A_WINDOW):
            at = start + width * part / _READINGS_A_WINDOW
            await asyncio.sleep(at - record.now())
            # Of the moment that was meant: one that is late still belongs to its window.
            record.readings.append(Reading(at, *await read()))
        await asyncio.sleep(start + width - record.now())
        each(window_of(record.everything(), record.readings, start, start + width))


async def kv_blocks_held(client: RouterClient) -> int | None:
    """KV blocks that sequences hold; None from what has no status, or none at this moment."""
    try:
        status = await client.status()
    except ShoalError:
        return None
    total, free = status.get("kv_blocks"), status.get("kv_blocks_free")
    return total - free if isinstance(total, int) and isinstance(free, int) else None
