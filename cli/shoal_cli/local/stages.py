"""Which process serves which stage of a local run, which stand by, and plan.json, which tells the router.

A standby is a process that has loaded the very blocks of a stage (shoal/plan/standby). When the one that serves is
gone, the plan names the standby instead, and the router opens the chain through it: nothing is loaded. The process that
comes back then stands by in its turn.

A disk that is full does not end the run: the router goes on with the plan that it has, and what could not be written is
written as soon as there is room (`settle`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ResourceError
from shoal.plan.document import Plan, StagePlan, Standby

PLAN_FILE = "plan.json"

Position = tuple[int, int]
"""Pipeline and stage."""


@dataclass(slots=True, eq=False)
class Seat:
    """One process that holds the blocks of a stage. `ready`: it has loaded them and nothing is known against it."""

    name: str
    position: Position
    stage: StagePlan
    ready: bool = False


class Stages:
    """Invariant: a stage is served by a process that is ready, unless none of its processes is."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._path = directory / PLAN_FILE
        self._serving: dict[Position, Seat] = {}
        self._standing_by: list[Seat] = []
        self.unwritten: ResourceError | None = None
        """Why plan.json is behind the truth; None when it is not."""
        for pipeline in plan.pipelines:
            for stage in pipeline.stages:
                position = pipeline.index, stage.index
                which = f"pipeline {pipeline.index} " if len(plan.pipelines) > 1 else ""
                self._serving[position] = Seat(f"{which}stage {stage.index}", position, stage)
        for number, standby in enumerate(plan.standbys):
            position = standby.pipeline, standby.stage.index
            self._standing_by.append(Seat(f"standby {number}", position, standby.stage))

    def __iter__(self) -> Iterator[Seat]:
        """Those that serve in order of their stages, then those that stand by."""
        return iter((*self._serving.values(), *self._standing_by))

    @property
    def path(self) -> Path:
        """plan.json."""
        return self._path

    def serves(self, seat: Seat) -> bool:
        """Whether the plan names it."""
        return self._serving[seat.position] is seat

    def lost(self, seat: Seat) -> Seat | None:
        """It is gone, or about to go; the plan names another if one is ready, which is returned."""
        seat.ready = False
        return self._fill(seat.position)

    def back(self, seat: Seat) -> None:
        """It is ready; it serves if the one that does is not."""
        seat.ready = True
        self._fill(seat.position)

    def write(self) -> None:
        """plan.json as things are, complete or not at all: the router may be reading it. Raises ResourceError."""
        pipelines = tuple(
            pipeline.model_copy(
                update={
                    "stages": tuple(self._serving[pipeline.index, stage.index].stage for stage in pipeline.stages),
                }
            )
            for pipeline in self._plan.pipelines
        )
        standbys = tuple(Standby(pipeline=seat.position[0], stage=seat.stage) for seat in self._standing_by)
        plan = self._plan.model_copy(update={"pipelines": pipelines, "standbys": standbys})
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_text(plan.model_dump_json(by_alias=True, indent=2), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            raise ResourceError(f"{self._path} cannot be written: {error.strerror}") from error
        self.unwritten = None

    def settle(self) -> None:
        """Write plan.json, or remember that it is due."""
        try:
            self.write()
        except ResourceError as error:
            self.unwritten = error

    def _fill(self, position: Position) -> Seat | None:
        held = self._serving[position]
        if held.ready:
            return None
        for number, seat in enumerate(self._standing_by):
            if seat.position == position and seat.ready:
                self._serving[position], self._standing_by[number] = seat, held
                self.settle()
                return seat
        return None
