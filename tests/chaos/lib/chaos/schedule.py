"""What is done to the pipeline, and when: drawn from a seed, so that a run can be repeated. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

FIRST_SECONDS = 2.0
"""Of peace, for the clients to begin."""

PAUSE_SECONDS = (2.0, 8.0)

PHASE_SECONDS = 180.0
"""Every other phase leaves the processes alive, so that their memory can be watched."""

GENTLE_STOP_SECONDS = 1.5
"""Nobody takes a process for lost that is stopped for so long."""


class Blow(StrEnum):
    """One kind of disturbance."""

    KILL_STAGE = "kill -9 a stage"
    KILL_STANDBY = "kill -9 a standby"
    STOP_STAGE = "SIGSTOP a stage, SIGCONT later"
    DRAIN_STAGE = "SIGTERM a stage"
    STALL_LINK = "a link stands still"
    DELAY_LINK = "a link gets slow"
    CUT_LINK = "a link is cut, mended later"
    CORRUPT_LINK = "a link turns over a bit"
    RESTART_ROUTER = "SIGTERM the router"
    KILL_ROUTER = "kill -9 the router"
    FILL_DISK = "the disk is full, and a stage is killed meanwhile"


_SECONDS: dict[Blow, tuple[float, float]] = {
    Blow.STOP_STAGE: (0.2, 6.0),
    Blow.STALL_LINK: (0.2, 5.0),
    Blow.DELAY_LINK: (2.0, 10.0),
    Blow.CUT_LINK: (0.1, 4.0),
    Blow.FILL_DISK: (1.0, 6.0),
}

_WEIGHTS: dict[Blow, int] = {
    Blow.KILL_STAGE: 4,
    Blow.KILL_STANDBY: 1,
    Blow.STOP_STAGE: 3,
    Blow.DRAIN_STAGE: 2,
    Blow.STALL_LINK: 2,
    Blow.DELAY_LINK: 1,
    Blow.CUT_LINK: 2,
    Blow.CORRUPT_LINK: 2,
    Blow.RESTART_ROUTER: 1,
    Blow.KILL_ROUTER: 1,
    Blow.FILL_DISK: 1,
}


GENTLE = (Blow.STOP_STAGE, Blow.STALL_LINK, Blow.DELAY_LINK, Blow.CUT_LINK, Blow.CORRUPT_LINK)
"""Blows that end no process."""


@dataclass(frozen=True, slots=True)
class Event:
    """At `at` seconds `blow` hits: which stage, `choice` (0 to 1) says; for `seconds`, where it does not last."""

    at: float
    blow: Blow
    choice: float
    seconds: float


def schedule(seed: int, seconds: float) -> list[Event]:
    """The events of a run, in order. Each blow comes once before any is drawn again, while there is time."""
    rng = random.Random(seed)
    due = rng.sample(list(Blow), len(Blow))
    events: list[Event] = []
    at = FIRST_SECONDS
    while at < seconds:
        gentle = int(at // PHASE_SECONDS) % 2 == 1
        among = GENTLE if gentle else tuple(Blow)
        blow = due.pop() if due and not gentle else rng.choices(among, [_WEIGHTS[each] for each in among])[0]
        lasting = rng.uniform(*_SECONDS.get(blow, (0.0, 0.0)))
        if gentle and blow is Blow.STOP_STAGE:
            lasting = min(lasting, GENTLE_STOP_SECONDS)
        events.append(Event(round(at, 2), blow, rng.random(), round(lasting, 2)))
        at += rng.uniform(*PAUSE_SECONDS)
    return events
