"""Whether a PC is in use, with patience in both directions. Pure: time comes with each observation.

A moment of load or a mouse that is moved makes no PC busy, and a coffee break frees none: stages that move cost more
than they give back. So each reason must press for a while without a break before it counts, and nothing may press for
ten minutes before the PC is free again. While it is in use, its reason only changes to a stronger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from shoal.node_use import UseReason
from shoal_stage.agent.observation import Observation

PATIENCE: Final[Mapping[UseReason, float]] = MappingProxyType(
    {
        UseReason.USER_ACTIVE: 30.0,
        UseReason.ON_BATTERY: 60.0,
        UseReason.HOT: 120.0,
        UseReason.BUSY_WITH_OTHERS: 120.0,
    }
)
"""Seconds for which a reason must press before it counts; the strongest reason first."""
FREE_SECONDS: Final = 600.0
"""Without any reason, until the PC is free again."""
BUSY_ABOVE: Final = 0.35
BUSY_BELOW: Final = 0.20
"""Shares of all cores: load by others presses from the first on, and until it falls below the second."""
HOT_ABOVE: Final = 0.10


@dataclass(frozen=True, slots=True)
class Patience:
    """What an office may choose: a factor of PATIENCE, and its own FREE_SECONDS."""

    factor: float = 1.0
    free_seconds: float = FREE_SECONDS


USUAL: Final = Patience()


@dataclass(frozen=True, slots=True)
class Use:
    """`reason` NOBODY: it is free. `pressing`: since when each reason presses; `calm_since`: since when none does."""

    reason: UseReason = UseReason.NOBODY
    pressing: Mapping[UseReason, float] = field(default_factory=dict)
    calm_since: float | None = None

    @property
    def in_use(self) -> bool:
        """Whether stages should leave the PC alone."""
        return self.reason is not UseReason.NOBODY


def next_use(use: Use, seen: Observation, patience: Patience = USUAL) -> Use:
    """How it is after one more observation."""
    reasons = _pressing(seen, busy_already=UseReason.BUSY_WITH_OTHERS in use.pressing)
    pressing = {reason: use.pressing.get(reason, seen.at) for reason in reasons}
    calm_since = None if pressing else seen.at if use.calm_since is None else use.calm_since
    due = [
        reason
        for reason, seconds in PATIENCE.items()
        if reason in pressing and seen.at - pressing[reason] >= seconds * patience.factor
    ]
    reason = use.reason
    if due and _rank(due[0]) < _rank(reason):
        reason = due[0]
    elif use.in_use and calm_since is not None and seen.at - calm_since >= patience.free_seconds:
        reason = UseReason.NOBODY
    return Use(reason, pressing, calm_since)


def _pressing(seen: Observation, *, busy_already: bool) -> tuple[UseReason, ...]:
    found = {
        UseReason.USER_ACTIVE: seen.person,
        UseReason.ON_BATTERY: seen.on_battery,
        UseReason.HOT: seen.hot >= HOT_ABOVE,
        UseReason.BUSY_WITH_OTHERS: seen.others >= (BUSY_BELOW if busy_already else BUSY_ABOVE),
    }
    return tuple(reason for reason, presses in found.items() if presses)


def _rank(reason: UseReason) -> int:
    return list(UseReason).index(reason)
