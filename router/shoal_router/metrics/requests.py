"""Requests as they come and end: a Generator around the real one.

How an answer ended is seen by how its iterator did. The API closes an iterator when it has what it wanted, which is a
stop string; it cancels the task that reads one when the client leaves. All else says so itself: the last delta has a
reason, an error is raised. What is refused before its first token is no request: the API counts it as rejected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from shoal_router.generation import (
    ContextLengthExceeded,
    FinishReason,
    GenerationRequest,
    Generator,
    GeneratorStatus,
    PipelineUnavailable,
    QueueFull,
    TokenDelta,
)
from shoal_router.metrics.families import Families


class MeteredGenerator:
    """See Generator."""

    def __init__(self, generator: Generator, families: Families, clock: Callable[[], float] = time.monotonic) -> None:
        self._generator = generator
        self._families = families
        self._clock = clock

    def status(self) -> GeneratorStatus:
        """See Generator.status."""
        return self._generator.status()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """See Generator.generate."""
        families, clock = self._families, self._clock
        came = last = clock()
        first = True
        reason = "error"
        try:
            async with aclosing(self._generator.generate(request)) as deltas:
                async for delta in deltas:
                    now, number = clock(), len(delta.tokens)
                    if first:
                        first = False
                        families.ttft.observe(now - came)
                        families.prompt_tokens.inc(len(request.prompt))
                        families.prefix_hits.inc(delta.cached_tokens)
                    elif number:
                        families.inter_token.observe((now - last) / number)
                    last = now
                    families.tokens.inc(number)
                    if delta.finish is not None:
                        reason = delta.finish.value
                    yield delta
        except (ContextLengthExceeded, PipelineUnavailable, QueueFull):
            reason = "" if first else "error"
            raise
        except GeneratorExit:
            reason = FinishReason.STOP.value if reason == "error" else reason
            raise
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        finally:
            if reason:
                families.requests.labels(reason).inc()
