"""Which stages are gone, as a stream for the operator: a line at once, one whenever that changes, and one now and then.

    {"lost": ["smollm2-s1-5ac0ffee.smollm2-stages.llm.svc.cluster.local:50051"]}

The router knows within seconds what Kubernetes says of a PC without power after most of a minute. It knows it of its
own stages only, and by their addresses, which are those of the plan. A stage is gone when it answered once and does not
now, or when it says that it stops.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final

from shoal_router.pipeline.board import Seen
from shoal_router.watch.view import PipelineView

LOOK_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 3.0
"""How long the stream may be silent: whoever hears nothing for much longer knows that the router is gone."""


def lost_stages(pipelines: Iterable[PipelineView]) -> tuple[str, ...]:
    """The addresses of the stages that are gone.

    A router that hears none of several stages says nothing: it is most likely the one that is cut off.
    """
    found: list[str] = []
    for pipeline in pipelines:
        stopping = {each.stage for each in pipeline.progress if each.draining}
        gone = [
            stage.planned.address
            for stage in pipeline.stages
            if stage.state is Seen.LOST or stage.planned.index in stopping
        ]
        if len(gone) == 1 or len(gone) < len(pipeline.stages):
            found += gone
    return tuple(found)


class LostStages:
    """Streams what `look` shows, to any number of readers; nothing runs while nobody reads."""

    def __init__(
        self,
        look: Callable[[], Iterable[PipelineView]],
        *,
        clock: Callable[[], float] = time.monotonic,
        look_seconds: float = LOOK_SECONDS,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._look = look
        self._clock = clock
        self._look_seconds = look_seconds
        self._quiet_seconds = quiet_seconds
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End every stream: the router is stopping, and would wait for them."""
        self._closed.set()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Lines of JSON until `close`."""
        said: tuple[str, ...] | None = None
        due = self._clock()
        while not self._closed.is_set():
            lost, now = lost_stages(self._look()), self._clock()
            if lost != said or now >= due:
                said, due = lost, now + self._quiet_seconds
                yield json.dumps({"lost": lost}).encode() + b"\n"
            try:
                async with asyncio.timeout(self._look_seconds):
                    await self._closed.wait()
            except TimeoutError:
                continue
