"""The draft engine's thread: takes in what came, runs one step for all texts that want one, tells what was drafted.

Texts change between steps only, so a change waits for at most one step, and no step is ever stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from typing import Protocol

from shoal.errors import StageError
from shoal.wire.drafts import Proposal, ProposeReply, ProposeRequest
from shoal_stage.draft.book import DraftBook
from shoal_stage.engine.interface import Engine
from shoal_stage.server.thread import EngineThread, Listener


class DraftListener(Listener, Protocol):
    """Who hears of what the thread did. All calls are made on the event loop."""

    def drafted(self, owner: int, reply: ProposeReply) -> None:
        """Something for the router whose stream is `owner`."""
        ...

    def refused(self, owner: int, error: StageError) -> None:
        """What this router said cannot be: its stream ends."""
        ...


@dataclass(frozen=True, slots=True)
class _Said:
    owner: int
    request: ProposeRequest


@dataclass(frozen=True, slots=True)
class _Left:
    owner: int


class DraftThread(EngineThread["_Said | _Left"]):
    """See EngineThread."""

    def __init__(
        self, load: Callable[[], Engine], listener: DraftListener, *, vocab_size: int, prefill_chunk: int
    ) -> None:
        super().__init__(load, listener)
        self._listener = listener
        self._vocab_size = vocab_size
        self._prefill_chunk = prefill_chunk

    def say(self, owner: int, request: ProposeRequest) -> None:
        """Queue what a router said."""
        self._inbox.put(_Said(owner, request))

    def leave(self, owner: int) -> None:
        """Queue that a router is gone."""
        self._inbox.put(_Left(owner))

    def _serve(self, engine: Engine) -> None:
        book = DraftBook(engine.capacity, min(self._vocab_size, engine.info.vocab_size), self._prefill_chunk)
        rows = book.plan()
        while self._take_in(book, wait=not rows):
            if released := book.releases():
                engine.release(released)
            rows = book.plan()
            if rows:
                started = time.perf_counter()
                self._busy_since = started
                drafted = book.done(rows, engine.run(rows, None))
                self._busy_since = None
                # A prompt's chunk says nothing of what one more draft costs.
                decoding = sum(len(row.tokens) for row in rows) <= 2 * len(rows)
                took = int((time.perf_counter() - started) * 1e6) if decoding else 0
                for owner, proposals in drafted.items():
                    self._tell(self._listener.drafted, owner, ProposeReply(None, tuple(proposals), took))

    def _take_in(self, book: DraftBook, *, wait: bool) -> bool:
        """Take in all that is queued; with `wait`, at least one. False when it is time to stop."""
        while True:
            try:
                job = self._inbox.get(block=wait)
            except Empty:
                return not self._stopping
            if job is None or self._stopping:
                return False
            wait = False
            if isinstance(job, _Left):
                book.leave(job.owner)
            else:
                self._hear(book, job)

    def _hear(self, book: DraftBook, said: _Said) -> None:
        kept: list[Proposal] = []
        book.end(said.owner, said.request.ended)
        try:
            for text in said.request.texts:
                if (proposal := book.update(said.owner, text)) is not None:
                    kept.append(proposal)
        except StageError as error:
            book.leave(said.owner)
            self._tell(self._listener.refused, said.owner, error)
            return
        if kept:
            self._tell(self._listener.drafted, said.owner, ProposeReply(None, tuple(kept)))
