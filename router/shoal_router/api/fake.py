"""FakeGenerator: a Generator that recites, for tests of the API and for clients without a pipeline.

It keeps a record of what it was asked and of what was cancelled. With `gate` set, it waits after `gate_after` ids of
each sequence until the event is set, so that a test can act in the middle of an answer without a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from shoal.wire.messages import StageTiming, TokenLogprob
from shoal_router.generation import (
    ContextLengthExceeded,
    FinishReason,
    GenerationError,
    GenerationRequest,
    GeneratorStatus,
    TokenDelta,
)

Script = Callable[[GenerationRequest], Sequence[int]]


@dataclass
class FakeGenerator:
    """Recites `script(request)`; a script's last id may be a stop id. `per_delta` ids come at once."""

    script: Script
    max_context: int = 4096
    per_delta: int = 1
    cached_tokens: int = 0
    ready: bool = True
    epoch: int = 1
    fails_at_start: GenerationError | None = None
    fails_after: tuple[int, Exception] | None = None
    gate: asyncio.Event | None = None
    gate_after: int = 0
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    running: int = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """The script's ids, up to a stop id or `max_tokens`."""
        self.requests.append(request)
        if self.fails_at_start is not None:
            raise self.fails_at_start
        room = self.max_context - len(request.prompt)
        if room < 1:
            raise ContextLengthExceeded(len(request.prompt), self.max_context)
        limit = room if request.max_tokens is None else min(room, request.max_tokens)
        self.running += 1
        finished = False
        try:
            async for delta in self._recite(request, limit):
                finished = delta.finish is not None
                yield delta
        finally:
            self.running -= 1
            if not finished:
                self.cancelled.append(request.request_id)

    async def _recite(self, request: GenerationRequest, limit: int) -> AsyncGenerator[TokenDelta, None]:
        ids = list(self.script(request))[:limit]
        stop = next((at for at, token_id in enumerate(ids) if token_id in request.stop_token_ids), None)
        if stop is not None:
            ids = ids[: stop + 1]
        finish = FinishReason.STOP if stop is not None else FinishReason.LENGTH
        for start in range(0, len(ids), self.per_delta):
            await self._step(start)
            chunk = tuple(ids[start : start + self.per_delta])
            last = start + self.per_delta >= len(ids)
            yield TokenDelta(
                tokens=chunk,
                logprobs=self._scores(chunk, request.params.logprobs),
                finish=finish if last else None,
                cached_tokens=self.cached_tokens,
            )

    async def _step(self, produced: int) -> None:
        if self.gate is not None and produced >= self.gate_after:
            await self.gate.wait()
        if self.fails_after is not None and produced >= self.fails_after[0]:
            raise self.fails_after[1]
        await asyncio.sleep(0)  # a real step yields to the event loop

    @staticmethod
    def _scores(ids: tuple[int, ...], alternatives: int | None) -> tuple[TokenLogprob, ...]:
        if alternatives is None:
            return ()
        return tuple(
            TokenLogprob(-0.5, tuple((token_id + rank, -0.5 - rank) for rank in range(alternatives)))
            for token_id in ids
        )

    def status(self) -> GeneratorStatus:
        """Ready as told."""
        return GeneratorStatus(
            ready=self.ready,
            detail="ready" if self.ready else "the pipeline is opening",
            max_context=self.max_context,
            epoch=self.epoch,
            running=self.running,
            waiting=0,
            timings=(StageTiming(stage=0, compute_us=0),),
        )
