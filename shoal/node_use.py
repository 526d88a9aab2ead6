"""Whether somebody uses a PC, as a condition of its Node object: written by its agent, read by the operator. Pure.

A PC that is in use is left alone by ShardedModels with `placement.whenInUse: Yield`. The agent repeats the condition
every HEARTBEAT_SECONDS; one that has not been repeated for STALE_SECONDS says nothing any more: its agent is gone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

CONDITION: Final = "ShoalPCInUse"
HEARTBEAT_SECONDS: Final = 300.0
STALE_SECONDS: Final = 900.0


class UseReason(StrEnum):
    """Why a PC counts as in use, the strongest first; or that it does not."""

    USER_ACTIVE = "UserActive"
    ON_BATTERY = "OnBattery"
    HOT = "Hot"
    BUSY_WITH_OTHERS = "BusyWithOthers"
    NOBODY = "NotInUse"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What a node's agent said last, and when."""

    in_use: bool
    reason: str
    heard: datetime.datetime

    def fresh(self, now: datetime.datetime) -> bool:
        """Whether the agent still speaks."""
        return (now - self.heard).total_seconds() < STALE_SECONDS


def use_of(conditions: Iterable[Mapping[str, Any]]) -> NodeUse | None:
    """What the conditions of a Node object say; None when no agent has ever spoken."""
    for each in conditions:
        if each["type"] == CONDITION:
            heard = datetime.datetime.fromisoformat(each.get("lastHeartbeatTime") or "1970-01-01T00:00:00Z")
            return NodeUse(each["status"] == "True", str(each.get("reason", "")), heard)
    return None
