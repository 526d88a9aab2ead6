"""A real draft server in this process over a FakeEngine, for tests of routers and of the server itself.

    async with start_draft() as draft:
        address = draft.address                 # what a router dials
        draft.engine.live                       # empty when every sequence has ended

`shoal_stage.engine.fake.greedy_text` is the oracle of what it drafts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.vocabulary import Vocabulary
from shoal.wire.drafts import DraftModel
from shoal.wire.messages import Row
from shoal_stage.draft.server import DraftServer
from shoal_stage.engine.fake import FakeEngine
from shoal_stage.engine.interface import Engine
from shoal_stage.server.stage import Patience

LOCAL = "127.0.0.1:0"
VOCABULARY = Vocabulary("fake", 256, "f" * 64)


class SureEngine(FakeEngine):
    """A FakeEngine that is nearly certain of each id: one that is not is never asked to draft far ahead."""

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        return super().run(rows, hidden) * np.float32(1000)


@dataclass(slots=True)
class DraftHandle:
    """A running draft server."""

    address: str
    server: DraftServer
    engine: FakeEngine


@asynccontextmanager
async def start_draft(
    *,
    listen: str = LOCAL,
    load: Callable[[], Engine] | None = None,
    on_run: Callable[[Sequence[Row]], None] | None = None,
    vocabulary: Vocabulary = VOCABULARY,
    patience: Patience | None = None,
    prefill_chunk: int = 16,
    wait_ready: bool = True,
    sequences: int = 4,
    blocks: int = 128,
    vocab_size: int = 256,
) -> AsyncIterator[DraftHandle]:
    """A draft server on the loopback. `on_run` is called on the compute thread before each step with its rows."""
    engine = SureEngine(0, 6, sequences=sequences, blocks=blocks, vocab_size=vocab_size, on_run=on_run)
    model = DraftModel(vocabulary.model, "0" * 64, vocabulary.size, vocabulary.digest, engine.capacity.max_context)
    server = DraftServer(load or (lambda: engine), model, patience or Patience(drain=5.0), prefill_chunk=prefill_chunk)
    address = await server.start(listen)
    try:
        if wait_ready:
            await server.settled.wait()
        yield DraftHandle(address, server, engine)
    finally:
        await server.stop()
