"""Speculation on stages with a clock: what it gains where it can, and that it costs next to nothing where it cannot.

Stages of fixed times in one FIFO, each further token of a step 8 % dearer, a drafter that always has something to say
and is right with a given chance. Rates are those of the tokens until the first sequence ends.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from functools import cache

import pytest

from shoal.resource import SpeculativeMode
from shoal.wire.messages import KvCapacity, RowOutcome, SamplingParams, StageTiming
from shoal_router.generation import GenerationRequest
from shoal_router.schedule.fake_drafter import FakeDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.schedule.scheduler import Scheduler
from shoal_router.schedule.speculation import Speculator

AUTO = SpeculativeMode.AUTO
LAN, FAR = 0.001, 0.4  # seconds round the ring, beside what the stages compute
DEARER = 0.08


def token_at(seq, position):
    """The text: it depends on nothing but the place, so that it need not be computed from all before it."""
    return zlib.crc32(b"%d %d" % (seq, position)) % 50_000


def reply(row):
    drawn = []
    for index in row.sampled:
        drawn.append(token_at(row.seq, row.past_len + index + 1))
        if index + 1 < len(row.tokens) and index + 1 >= row.known and drawn[-1] != row.tokens[index + 1]:
            break
    return RowOutcome(row.seq, row.version, row.past_len + max(row.known, 1), tuple(drawn))


def rate(stages, network, users, speculator=None, tokens=500):
    """Tokens a second of all users together."""
    capacity = KvCapacity(64, 4096, 32, 4096, 0, True)
    scheduler = Scheduler(capacity, depth=len(stages), speculator=speculator)
    for number in range(users):
        scheduler.add(GenerationRequest(str(number), (1,), SamplingParams(), tokens))
    now, committed, over = 0.0, 0, False
    free = [0.0] * len(stages)
    under_way: deque = deque()
    while not over:
        while (plan := scheduler.schedule(now)) is not None:
            width = sum(len(row.tokens) for row in plan.rows)
            at, timings = now, []
            for stage, seconds in enumerate(stages):
                at += network / (len(stages) + 1)
                begin = max(at, free[stage])
                spent = seconds * (1 + DEARER * (width - 1))
                timings.append(StageTiming(stage, int(spent * 1e6), int((begin - at) * 1e6)))
                at = free[stage] = begin + spent
            at += network / (len(stages) + 1)
            under_way.append((at, [reply(row) for row in plan.rows if row.sample], timings))
        if scheduler.wake_at is not None and scheduler.wake_at < under_way[0][0]:
            now = scheduler.wake_at
            continue
        now, outcomes, timings = under_way.popleft()
        events = scheduler.update(outcomes, now, timings)
        committed += sum(len(event.tokens) for event in events)
        over = any(event.finish for event in events)
    return committed / now


@cache
def plain_rate(stages, network, users):
    """The rate without speculation: the same for every drafter."""
    return rate(stages, network, users)


def gain(accuracy, stages=(0.01, 0.01), network=LAN, users=1, **settings):
    """The rate with speculation over the one without."""
    drafter = FakeDrafter(
        lambda seq, ids: token_at(seq, len(ids)), random.Random(1), accuracy=accuracy, varies=False, confidence=0.7
    )
    speculator = Speculator(drafter, SpeculationSettings(**{"mode": AUTO, **settings}), vocab_size=50_001)
    return rate(stages, network, users, speculator) / plain_rate(stages, network, users)


@pytest.mark.parametrize(
    ("stages", "network", "users"),
    [((0.01, 0.01), LAN, 1), ((0.01, 0.01), LAN, 2), ((0.01, 0.01), LAN, 8), ((0.005, 0.015), LAN, 1), ((0.02,), 0, 1)],
)
@pytest.mark.parametrize("accuracy", [0.0, 0.1])
def test_drafts_that_are_never_good_cost_a_fiftieth_at_most(accuracy, stages, network, users):
    assert gain(accuracy, stages, network, users) > 0.98


@pytest.mark.parametrize(
    ("accuracy", "stages", "network", "users", "least"),
    [
        (0.7, (0.01, 0.01), LAN, 1, 2.1),
        (0.9, (0.01, 0.01), LAN, 1, 4.2),
        (0.7, (0.01,) * 4, LAN, 1, 2.1),
        (0.9, (0.01,) * 4, LAN, 1, 4.5),
        (0.7, (0.01, 0.01), LAN, 2, 1.85),
        (0.7, (0.01,) * 3, FAR, 1, 2.8),
        (0.9, (0.01,) * 3, FAR, 1, 6.5),
        (0.97, (0.01,) * 3, FAR, 2, 12.0),
    ],
)
def test_good_drafts_gain_what_they_can(accuracy, stages, network, users, least):
    assert gain(accuracy, stages, network, users) > least


@pytest.mark.parametrize(("stages", "network", "least"), [((0.01, 0.01), LAN, 1.05), ((0.01,) * 3, FAR, 1.3)])
def test_rows_in_flight_gain_over_one_row_at_a_time(stages, network, least):
    assert gain(0.9, stages, network) > least * gain(0.9, stages, network, max_chunks=1)


@pytest.mark.parametrize("accuracy", [0.3, 0.5, 0.8, 0.95])
def test_no_fixed_number_of_drafts_is_much_better(accuracy):
    fixed = [gain(accuracy, mode=SpeculativeMode.FIXED, max_tokens=k, max_chunks=1) for k in (1, 3, 7)]
    assert gain(accuracy) > 0.93 * max(fixed)
