"""A PC that somebody uses is left alone (`placement.whenInUse: Yield`): which nodes that are, and what follows. Pure.

A stage leaves its node as a standby takes over: it is loaded elsewhere first, and moves when that is ready, so that no
answer waits for it. What finds no other place stays where it is, and the status says so.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final
from zoneinfo import ZoneInfo

from shoal.node_use import STALE_SECONDS
from shoal.plan.document import Plan
from shoal.plan.standby import covered
from shoal.resource import Day, Placement, WhenInUse, WorkingHours
from shoal_operator.nodes import NodeView

_WEEK: Final = 8
"""Days in which working hours begin or end at least once, today's rest included."""


def nodes_in_use(views: Sequence[NodeView], placement: Placement, now: datetime.datetime) -> dict[str, str]:
    """Nodes that this ShardedModel leaves alone now, each with the reason in words; none where it ignores their use."""
    if placement.when_in_use is WhenInUse.IGNORE:
        return {}
    found = {}
    for view in views:
        if view.use is None or not view.use.fresh(now):
            continue
        if view.use.in_use:
            found[view.name] = view.use.reason
        elif placement.working_hours is not None and within(placement.working_hours, now):
            found[view.name] = "WorkingHours"
    return found


def look_again_for_use(views: Sequence[NodeView], placement: Placement, now: datetime.datetime) -> float | None:
    """In how many seconds time alone changes what `nodes_in_use` says."""
    if placement.when_in_use is WhenInUse.IGNORE:
        return None
    heard = [view.use.heard for view in views if view.use is not None and view.use.fresh(now)]
    waits = [STALE_SECONDS - (now - each).total_seconds() for each in heard]
    if placement.working_hours is not None and heard:
        waits.append(until_change(placement.working_hours, now))
    return min((wait + 0.5 for wait in waits), default=None)


def within(hours: WorkingHours, now: datetime.datetime) -> bool:
    """Whether it is one of the working hours."""
    local = now.astimezone(ZoneInfo(hours.time_zone))
    return _day(local) in hours.days and hours.start <= local.strftime("%H:%M") < hours.end


def until_change(hours: WorkingHours, now: datetime.datetime) -> float:
    """Seconds until working hours begin or end."""
    return min(seconds for seconds in _changes(hours, now) if seconds > 0)


def _changes(hours: WorkingHours, now: datetime.datetime) -> Iterator[float]:
    zone = ZoneInfo(hours.time_zone)
    today = now.astimezone(zone).date()
    for ahead in range(_WEEK):
        date = today + datetime.timedelta(days=ahead)
        if _day(date) in hours.days:
            for text in (hours.start, hours.end):
                at = datetime.datetime.combine(date, datetime.time.fromisoformat(text), zone)
                yield (at.astimezone(datetime.UTC) - now).total_seconds()


def _day(date: datetime.date) -> Day:
    return list(Day)[date.weekday()]


def on_their_way(plan: Plan, in_use: Collection[str]) -> tuple[str, ...]:
    """A line for each stage that moves off a node in use as soon as it is loaded elsewhere."""
    return tuple(
        f"stage {index} leaves {plan.pipelines[pipeline].stages[index].node}, which is in use, when it is loaded on "
        f"{standby.stage.node}"
        for (pipeline, index), standby in sorted(covered(plan, in_use).items())
    )


def without_a_place(plan: Plan, in_use: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each stage that stays on a node in use."""
    moving = covered(plan, in_use)
    return tuple(
        f"stage {stage.index} stays on {stage.node}, which is in use ({in_use[stage.node]}): no other node can hold it"
        for pipeline in plan.pipelines
        for stage in pipeline.stages
        if stage.node in in_use and (pipeline.index, stage.index) not in moving
    )
