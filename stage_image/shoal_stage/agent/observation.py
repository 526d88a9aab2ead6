"""From counters at two times to what a PC did in between. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read at `at` (seconds of a clock that never jumps). Counters only grow while the PC runs.

    `busy`: CPU seconds computed by all cores; `pods`: those of them that pods took, None where that cannot be told;
    `throttled`: seconds for which the hottest core was held back; `person`: whether somebody is there, None: not known.
    """

    at: float
    cpus: int
    busy: float
    pods: float | None = None
    throttled: float = 0.0
    on_battery: bool = False
    person: bool | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """`others`: share of all cores that programs outside of pods took; `load`: what everything took; `hot`: share of
    the time for which a core was held back."""

    at: float
    person: bool = False
    on_battery: bool = False
    hot: float = 0.0
    others: float = 0.0
    load: float = 0.0


def between(before: Readings, after: Readings) -> Observation:
    """What happened from one to the other."""
    seconds = after.at - before.at
    if seconds <= 0:
        raise ValueError(f"readings are {seconds} s apart")
    whole = seconds * max(after.cpus, 1)
    busy = max(after.busy - before.busy, 0.0)
    known = before.pods is not None and after.pods is not None
    pods = max((after.pods or 0.0) - (before.pods or 0.0), 0.0)
    return Observation(
        at=after.at,
        person=bool(after.person),
        on_battery=after.on_battery,
        hot=_share((after.throttled - before.throttled) / seconds),
        others=_share((busy - pods) / whole) if known else 0.0,
        load=_share(busy / whole),
    )


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
