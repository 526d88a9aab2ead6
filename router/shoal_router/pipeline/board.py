"""What is known of each stage of a pipeline, for people who look: written while it is opened, kept while it is open.

Nothing decides by it. Its states are what somebody before a screen asks: is it there, does it load, did it serve
before and is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.plan.document import StagePlan
from shoal.wire.messages import StageDescription
from shoal_router.pipeline.plan_source import PlannedPipeline


class Seen(StrEnum):
    """WAITING: has not answered yet; LOST: answered before and does not now."""

    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage: its place in the plan, how it looks, and what it said of itself last."""

    planned: StagePlan
    state: Seen
    detail: str = ""
    description: StageDescription | None = None


class StageBoard:
    """The stages of one pipeline, as last heard."""

    def __init__(self) -> None:
        self._views: dict[int, StageView] = {}

    @property
    def views(self) -> tuple[StageView, ...]:
        """In the order of the stages; empty before a plan was read."""
        return tuple(self._views[index] for index in sorted(self._views))

    def follow(self, planned: PlannedPipeline) -> None:
        """Opening begins with this plan. A stage that kept its place and address keeps what was known of it."""
        before, self._views = self._views, {}
        for stage in planned.stages.stages:
            known = before.get(stage.index)
            if known is None or known.planned.address != stage.address:
                known = StageView(stage, Seen.WAITING)
            self._views[stage.index] = StageView(stage, known.state, known.detail, known.description)

    def knows(self, index: int) -> bool:
        """Whether the stage has answered before, at the address that it has now."""
        return self._views[index].description is not None

    def heard(self, index: int, state: Seen, detail: str, description: StageDescription) -> None:
        """The stage has answered."""
        self._views[index] = StageView(self._views[index].planned, state, detail, description)

    def silent(self, index: int, detail: str) -> None:
        """The stage does not answer: it is lost if it ever did."""
        known = self._views[index]
        state = Seen.LOST if known.description is not None else Seen.WAITING
        self._views[index] = StageView(known.planned, state, detail, known.description)
