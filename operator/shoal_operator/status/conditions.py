"""Conditions: what was found, as Kubernetes writes it. Ready is the sum; Degraded and Progressing stand outside.

`lastTransitionTime` moves only with the status, so that an unchanged finding is an unchanged object and nothing is
written.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from shoal.resource import Condition
from shoal.resource.status import ConditionType

SUM: Final = (
    ConditionType.MODEL_AVAILABLE,
    ConditionType.PLANNED,
    ConditionType.STAGES_READY,
    ConditionType.ROUTER_READY,
    ConditionType.CHAIN_HEALTHY,
)
Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition without its times."""

    type: ConditionType
    status: Status
    reason: str
    message: str = ""


def finding(kind: ConditionType, holds: bool | None, reason: str, message: str = "") -> Finding:
    """A finding; None is Unknown."""
    status: Status = "Unknown" if holds is None else "True" if holds else "False"
    return Finding(kind, status, reason, message)


def with_ready(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings with their sum: the first that does not hold says why, in the order in which things come up."""
    found = {each.type: each for each in findings}
    missing = next((found[kind] for kind in SUM if kind in found and found[kind].status != "True"), None)
    if missing is not None:
        ready = finding(ConditionType.READY, False, missing.reason, f"{missing.type.value}: {missing.message}")
    elif all(kind in found for kind in SUM):
        ready = finding(ConditionType.READY, True, "Serving", "the API answers")
    else:
        ready = finding(ConditionType.READY, None, "Unknown", "not everything was looked at")
    return (*found.values(), ready)


def merged(
    before: Sequence[Condition], findings: Iterable[Finding], generation: int, now: datetime.datetime
) -> tuple[Condition, ...]:
    """The new list of conditions, in the order of the type's definition."""
    old = {condition.type: condition for condition in before}
    order = list(ConditionType)
    conditions = []
    for each in sorted(findings, key=lambda each: order.index(each.type)):
        last = old.get(each.type.value)
        same = last is not None and last.status == each.status
        since = last.last_transition_time if same and last is not None else stamp(now)
        conditions.append(
            Condition(
                type=each.type.value,
                status=each.status,
                reason=each.reason,
                message=each.message,
                observed_generation=generation,
                last_transition_time=since,
            )
        )
    return tuple(conditions)


def stamp(now: datetime.datetime) -> str:
    """A time as the API server writes it."""
    return now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
