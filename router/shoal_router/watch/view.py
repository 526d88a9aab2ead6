"""What a watcher is told of one pipeline at one moment: a snapshot, taken only when somebody looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.wire.messages import StageProgress
from shoal_router.generation import PipelineStatus
from shoal_router.pipeline.board import StageView
from shoal_router.schedule.speculation import SpeculationStats
from shoal_router.watch.journal import Journal


@dataclass(frozen=True, slots=True)
class PipelineView:
    """`generated`: tokens so far; `slots`: sequences that may run at a time; `in_flight`: steps under way."""

    status: PipelineStatus
    stages: tuple[StageView, ...]
    progress: tuple[StageProgress, ...]
    generated: int
    slots: int
    in_flight: int


class Watched(Protocol):
    """Whose picture is drawn: the Fleet."""

    @property
    def journal(self) -> Journal:
        """Its requests, events and steps."""
        ...

    @property
    def speculation(self) -> SpeculationStats:
        """What became of its drafts."""
        ...

    def look(self) -> tuple[PipelineView, ...]:
        """Its pipelines, in the order of the plan."""
        ...
