"""From a prepared request to its HTTP answer: whole as JSON, or as server-sent events.

A stream does not begin before its first piece, so that an error until then has its proper HTTP status. When the first
piece takes longer than the keep-alive interval (a long prefill), the stream begins with comments instead, which keep
proxies and clients from giving up; an error after that comes as an event.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shoal_router.api.disconnect import ClientLeft, while_connected
from shoal_router.api.errors import ApiError, from_exception
from shoal_router.api.formats import AnswerFormat, Usage, WholeChoice
from shoal_router.api.running import Choice, RunningChoices
from shoal_router.generation import Generator
from shoal_router.text.answer import Piece

log = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"

# no-transform and the X- header keep proxies (nginx among them) from compressing or collecting the stream.
STREAM_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "Content-Type": "text/event-stream; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is checked, rendered and tokenised. `prompt_param`: what errors about the prompt call it."""

    request_id: str
    prompt_lengths: tuple[int, ...]
    choices: tuple[Choice, ...]
    layout: AnswerFormat
    prompt_param: str

    def usage(self) -> Usage:
        """Exact counts so far. A prompt counts as cached as far as every choice found it cached."""
        cached = [
            min(choice.answer.cached_tokens for choice in self.choices if choice.prompt_index == number)
            for number in range(len(self.prompt_lengths))
        ]
        return Usage(
            prompt_tokens=sum(self.prompt_lengths),
            completion_tokens=sum(choice.answer.completion_tokens for choice in self.choices),
            cached_tokens=sum(cached),
            reasoning_tokens=sum(choice.answer.reasoning_tokens for choice in self.choices),
        )


async def whole_answer(job: Job, generator: Generator) -> dict[str, Any]:
    """Run all choices to their end. Raises ApiError."""
    collected = {choice.index: WholeChoice(choice.index, choice.echo) for choice in job.choices}
    try:
        async with RunningChoices(generator, job.choices) as running:
            while not running.finished:
                for choice, piece in await running.next():
                    collected[choice.index].add(piece)
    except Exception as error:
        raise from_exception(error, prompt_param=job.prompt_param, request_id=job.request_id) from error
    return job.layout.whole([collected[index] for index in sorted(collected)], job.usage())


class AnswerStream(Response):
    """The answer as server-sent events. All of the generation happens within the ASGI call, so nothing outlives it."""

    def __init__(self, job: Job, generator: Generator, keep_alive_seconds: float) -> None:
        super().__init__(status_code=200, headers=STREAM_HEADERS)
        # The base class counts its (empty) body; a stream has no length.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._job = job
        self._generator = generator
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the end or until the client leaves. Raises ApiError if nothing was sent yet."""
        del scope
        try:
            await while_connected(receive, self._stream(send))
        except ClientLeft:
            log.info("client left", extra={"request_id": self._job.request_id})

    async def _stream(self, send: Send) -> None:
        async with RunningChoices(self._generator, self._job.choices, self._keep_alive_seconds) as running:
            try:
                pieces = await running.next()
            except Exception as error:
                raise self._api_error(error) from error
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send_body(send, self._opening())
            try:
                while True:
                    await _send_body(send, self._events(pieces))
                    if running.finished:
                        break
                    pieces = await running.next()
            except Exception as error:  # noqa: BLE001 - from_exception logs what is no one's doing
                last = self._job.layout.failure(self._api_error(error))
            else:
                last = self._job.layout.closing(self._job.usage())
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _opening(self) -> bytes:
        return b"".join(self._job.layout.opening(choice.index, choice.echo) for choice in self._job.choices)

    def _events(self, pieces: Sequence[tuple[Choice, Piece]]) -> bytes:
        if not pieces:
            return KEEP_ALIVE
        return b"".join(self._job.layout.piece(choice.index, piece) for choice, piece in pieces)

    def _api_error(self, error: Exception) -> ApiError:
        return from_exception(error, prompt_param=self._job.prompt_param, request_id=self._job.request_id)


async def _send_body(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
