"""Events for decisions, as `kubectl describe` shows them: what moved, what turned true or false. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

from shoal.resource import Condition
from shoal.resource.status import ConditionType
from shoal_operator import names
from shoal_operator.cluster.kinds import EVENT, Object
from shoal_operator.desired.intent import Intent
from shoal_operator.status.conditions import SUM, Finding, stamp

GOOD_NEWS: Final = (ConditionType.PLANNED, ConditionType.MODEL_AVAILABLE, ConditionType.READY)
"""Conditions that are worth an event when they become true; the others follow from them."""

ON_ITS_WAY: Final = frozenset(
    {
        "Starting",
        "Pulling",
        "Loading",
        "Compiling",
        "Terminating",
        "NoStages",
        "NoRouter",
        "ChainNotOpen",
        "ModelUnknown",
        "Pending",
        "ScaledToZero",
    }
)
"""Reasons that will pass: a Warning for them would teach people not to read Warnings."""


def events_for(
    before: Iterable[Condition], findings: Iterable[Finding], decisions: Iterable[str]
) -> list[tuple[str, str, str]]:
    """(type, reason, message) of each event that this reconcile gives rise to."""
    old = {condition.type: condition for condition in before}
    found = [("Normal", "Replanned", decision) for decision in decisions]
    for each in findings:
        last = old.get(each.type.value)
        if last is not None and (last.status, last.reason) == (each.status, each.reason):
            continue
        said = (each.reason, f"{each.type.value}: {each.message}")
        if each.type is ConditionType.DEGRADED:
            if each.status == "True":
                found.append(("Warning", *said))
            elif last is not None and last.status == "True":
                found.append(("Normal", "Recovered", "Degraded: everything is as planned again"))
        elif each.status == "True" and each.type in GOOD_NEWS:
            found.append(("Normal", *said))
        elif each.status == "False" and each.type in SUM and each.reason not in ON_ITS_WAY:
            found.append(("Warning", *said))
    return found


def event_object(intent: Intent, kind: str, reason: str, message: str, reporter: str, now: datetime.datetime) -> Object:
    """The Event."""
    metadata = intent.model.metadata
    said = names.digest_of([metadata.uid, metadata.generation, stamp(now), kind, reason, message])[:16]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": f"{intent.name}.{said}", "namespace": intent.namespace},
        "involvedObject": {
            "apiVersion": intent.model.api_version,
            "kind": intent.model.kind,
            "name": intent.name,
            "namespace": intent.namespace,
            "uid": metadata.uid or "",
        },
        "type": kind,
        "reason": reason,
        "message": message[:1024],
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
        "source": {"component": names.MANAGER},
        "reportingComponent": names.MANAGER,
        "reportingInstance": reporter,
    }
