"""The seam between the step loop and a pipeline of stages: steps go in, their results come out, in order.

    PipelineOpener.open()  ->  Pipeline          one epoch: it lives until it is closed or a stage is lost
    Pipeline.submit / release                    never wait: what cannot leave yet is queued inside
    Pipeline.result                              the next result, or the StageError that ended the epoch

There is no way back from a lost stage inside a Pipeline. Whoever holds it opens a new one, which has a new epoch, so
that nothing of the old one can be mistaken for the new. Implementations: `ring` (gRPC) and `fake` (in memory).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.wire.messages import KvCapacity, StageProgress, Step, StepResult
from shoal_router.pipeline.board import StageBoard

Progress = Callable[[str], None]
"""Called with one line whenever opening got further: which stage is awaited, and what it says of itself."""


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """What is known of an open pipeline. `capacity` is what every one of its stages can hold."""

    epoch: int
    stages: int
    model_digest: str
    capacity: KvCapacity
    vocab_size: int
    exact: bool = False
    addresses: tuple[str, ...] = ()


class Pipeline(Protocol):
    """An open pipeline. All calls come from one event loop."""

    @property
    def facts(self) -> PipelineFacts:
        """What the stages said when the pipeline was opened."""
        ...

    @property
    def progress(self) -> tuple[StageProgress, ...]:
        """What the stages said last of how far they are; empty before their first pulse."""
        ...

    def submit(self, step: Step) -> None:
        """Send a step to the first stage. Steps and releases keep their order on every stage."""
        ...

    def release(self, seqs: Sequence[int]) -> None:
        """Tell every stage that the sequences are over."""
        ...

    async def result(self) -> StepResult:
        """The result of the oldest step that has none yet; waits for one. One caller at a time.

        Raises the StageError that ended the epoch; from then on every call raises it.
        """
        ...

    async def close(self) -> None:
        """End the epoch and let go of every connection. Returns promptly whatever state the stages are in."""
        ...


class PipelineOpener(Protocol):
    """Knows where the stages are and makes a pipeline of them."""

    @property
    def board(self) -> StageBoard:
        """What is known of the stages, while it opens and afterwards."""
        ...

    async def open(self, *, deadline_seconds: float, progress: Progress) -> Pipeline:
        """Wait until every stage is ready, check that they fit together, and open them with a new epoch.

        Raises a StageError (or another ShoalError) with the reason when that does not come true within
        `deadline_seconds`.
        """
        ...
