"""The receiving end of one sequence: what its request's iterator reads, whichever pipeline computes it.

    StepLoop.enqueue ──> Mailbox ──> answer(): the request's iterator
                           ▲
        deltas of the loop that is its home, which changes when the sequence goes on at another pipeline

The iterator does not notice a change of home: it reads on, and when the client leaves it tells the home of that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from shoal_router.generation import GenerationError, TokenDelta
from shoal_router.watch.journal import RequestRecord


class Home(Protocol):
    """Where a sequence is computed."""

    def forget(self, mailbox: Mailbox) -> None:
        """Nobody reads the mailbox any more; it may be over already."""
        ...


@dataclass(slots=True, eq=False)
class Mailbox:
    """What has come for sequence `seq` and was not read yet. `losses`: pipelines that were lost while it had begun;
    `record`: its stamps for whoever watches.
    """

    seq: int
    home: Home
    record: RequestRecord
    losses: int = 0
    _items: asyncio.Queue[TokenDelta | GenerationError] = field(default_factory=asyncio.Queue)

    def put(self, item: TokenDelta | GenerationError) -> None:
        """New tokens, or why there will be none."""
        self._items.put_nowait(item)

    async def get(self) -> TokenDelta:
        """Wait for new tokens. Raises the GenerationError that ended the sequence."""
        item = await self._items.get()
        if isinstance(item, GenerationError):
            raise item
        return item


async def answer(enqueue: Callable[[], Mailbox]) -> AsyncGenerator[TokenDelta, None]:
    """Enqueue a request when the first delta is asked for, and yield its deltas; see Generator.generate."""
    mailbox = enqueue()
    try:
        while True:
            delta = await mailbox.get()
            yield delta
            if delta.finish is not None:
                return
    finally:
        mailbox.home.forget(mailbox)
