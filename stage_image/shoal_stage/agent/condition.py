"""A PC's use as a condition of its Node object: what is written, and when. Pure.

It is written when it changes, and repeated every five minutes, so that whoever reads it knows that the agent lives.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from shoal.node_use import CONDITION, HEARTBEAT_SECONDS, NodeUse, UseReason
from shoal_stage.agent.use import Use

MESSAGES: Final[Mapping[UseReason, str]] = MappingProxyType(
    {
        UseReason.USER_ACTIVE: "somebody is at this PC",
        UseReason.ON_BATTERY: "this PC runs on its battery",
        UseReason.HOT: "this PC is too hot to run at full speed",
        UseReason.BUSY_WITH_OTHERS: "programs outside of pods keep this PC busy",
        UseReason.NOBODY: "nobody uses this PC",
    }
)


@dataclass(frozen=True, slots=True)
class Said:
    """What the Node object says now, by this agent: at which time of its clock, and since when it has been so."""

    reason: UseReason
    at: float
    since: datetime.datetime


def is_due(said: Said | None, use: Use, now: float) -> bool:
    """Whether the condition has to be written."""
    return said is None or said.reason is not use.reason or now - said.at >= HEARTBEAT_SECONDS


def said_now(before: Said | None, use: Use, now: float, wall: datetime.datetime) -> Said:
    """What it says once it is written; the time of the last change stays as long as True stays True."""
    same = before is not None and (before.reason is not UseReason.NOBODY) == use.in_use
    return Said(use.reason, now, before.since if before is not None and same else wall)


def condition(said: Said, wall: datetime.datetime) -> dict[str, Any]:
    """The condition."""
    return {
        "type": CONDITION,
        "status": "False" if said.reason is UseReason.NOBODY else "True",
        "reason": said.reason.value,
        "message": MESSAGES[said.reason],
        "lastHeartbeatTime": _stamp(wall),
        "lastTransitionTime": _stamp(said.since),
    }


def taken_up(found: NodeUse | None, now: float, wall: datetime.datetime) -> Use:
    """Where an agent goes on that was started anew: a PC that was in use is so until it has been calm for a while."""
    if found is None or not found.in_use or not found.fresh(wall) or found.reason not in set(UseReason):
        return Use()
    return Use(UseReason(found.reason), calm_since=now)


def _stamp(time: datetime.datetime) -> str:
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
