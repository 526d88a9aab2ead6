"""Where the router learns which stages there are: plan.json.

It is read anew whenever a pipeline is opened, and now and then to see which pipelines there are.
The same document serves a file on one machine and a mounted ConfigMap in a cluster. Both are replaced by renaming, so
a reader never sees half of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from shoal.errors import PlanError
from shoal.plan.document import PipelinePlan, Plan


@dataclass(frozen=True, slots=True)
class PlannedPipeline:
    """The stages of one pipeline, each with its address; the model's digest if the plan names it."""

    stages: PipelinePlan
    model_digest: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of each stage, in order."""
        return tuple(stage.address for stage in self.stages.stages)


class PlanSource(Protocol):
    """Gives the plan as it is now."""

    def read(self) -> PlannedPipeline:
        """Raises PlanError when there is no plan that can be used."""
        ...


@dataclass(frozen=True, slots=True)
class PlanFile:
    """One pipeline of a plan.json."""

    path: Path
    pipeline: int = 0

    def read(self) -> PlannedPipeline:
        """See PlanSource.read."""
        plan = read_plan(self.path)
        if self.pipeline >= len(plan.pipelines):
            raise PlanError(f"the plan {self.path} has {len(plan.pipelines)} pipelines, there is no {self.pipeline}")
        stages = plan.pipelines[self.pipeline]
        for stage in stages.stages:
            if not stage.address:
                raise PlanError(f"the plan {self.path} has no address for stage {stage.index} yet")
        return PlannedPipeline(stages, plan.model_digest)


def pipelines_of(path: Path) -> range:
    """The pipelines of a plan.json, each of which PlanFile can read. Raises PlanError."""
    return range(len(read_plan(path).pipelines))


def read_plan(path: Path) -> Plan:
    """The plan at `path`. Raises PlanError."""
    try:
        return Plan.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise PlanError(f"there is no plan at {path}: is the planner done, is the path right?") from None
    except OSError as error:
        raise PlanError(f"the plan {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise PlanError(f"the plan {path} cannot be used: {where}: {first['msg']}") from error


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """A plan that is already in memory: for benchmarks and tests."""

    planned: PlannedPipeline

    def read(self) -> PlannedPipeline:
        """See PlanSource.read."""
        return self.planned
