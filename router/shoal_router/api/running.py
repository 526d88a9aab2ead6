"""The sequences of one request, running side by side: their pieces come out in the order of arrival.

One task a sequence reads its deltas; closing the group cancels every sequence that has not ended, which the step
loop takes as the order to free what it holds. An error of one sequence ends the request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from shoal_router.generation import FinishReason, GenerationFailed, GenerationRequest, Generator
from shoal_router.text.answer import AnswerText, Piece


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence of a request: the answer number `index`, to prompt number `prompt_index`.

    `echo` is text that the answer begins with. Without a `request` there is nothing to generate (max_tokens 0).
    """

    index: int
    prompt_index: int
    answer: AnswerText
    request: GenerationRequest | None
    echo: str = ""


@dataclass
class RunningChoices:
    """Async context manager around the tasks. `next` gives pieces until every choice has `finished`.

    With `silence`, `next` gives nothing after that many seconds without a piece. One timer for the whole answer sees to
    it: a timeout around each wait would cost as much as the rest of a token's way through here.
    """

    generator: Generator
    choices: Sequence[Choice]
    silence: float | None = None
    _events: asyncio.Queue[tuple[Choice, Piece] | Exception | None] = field(default_factory=asyncio.Queue)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _unfinished: int = 0
    _last_event: float = 0.0

    async def __aenter__(self) -> Self:
        self._unfinished = len(self.choices)
        self._tasks = [asyncio.create_task(self._read(choice)) for choice in self.choices]
        if self.silence is not None:
            self._tasks.append(asyncio.create_task(self._break_silence(self.silence)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self._unfinished == 0

    async def next(self) -> list[tuple[Choice, Piece]]:
        """Wait for a piece, and take along what else has come by then. Raises what a sequence raised."""
        events = [await self._events.get()]
        self._last_event = time.monotonic()
        while not self._events.empty():
            events.append(self._events.get_nowait())
        pieces: list[tuple[Choice, Piece]] = []
        for event in events:
            if event is None:
                continue
            if isinstance(event, Exception):
                if pieces:  # what came before the error is still shown; the error comes with the next call
                    self._events.put_nowait(event)
                    break
                raise event
            pieces.append(event)
            if event[1].finish is not None:
                self._unfinished -= 1
        return pieces

    async def _break_silence(self, seconds: float) -> None:
        """Put an empty event into the queue whenever nothing came for that long; runs as a task."""
        self._last_event = time.monotonic()
        while True:
            await asyncio.sleep(self._last_event + seconds - time.monotonic())
            if time.monotonic() - self._last_event >= seconds:
                self._last_event = time.monotonic()
                self._events.put_nowait(None)

    async def _read(self, choice: Choice) -> None:
        """Feed one sequence's deltas into its answer until it ends; runs as a task."""
        try:
            if choice.request is None:
                self._events.put_nowait((choice, Piece("", finish=FinishReason.LENGTH)))
            else:
                await self._generate(choice, choice.request)
        except Exception as error:  # noqa: BLE001 - raised again in `next`, by whoever answers the client
            self._events.put_nowait(error)

    async def _generate(self, choice: Choice, request: GenerationRequest) -> None:
        deltas = self.generator.generate(request)
        async with aclosing(deltas):
            async for delta in deltas:
                piece = choice.answer.push(delta)
                if not piece.empty:
                    self._events.put_nowait((choice, piece))
                if piece.finish is not None:
                    return
        raise GenerationFailed("the answer broke off without an end")
