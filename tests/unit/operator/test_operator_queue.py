"""One at a time each, bursts as one, failures slower each time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal_operator.errors import ApiForbidden, ApiThrottled, ApiUnavailable
from shoal_operator.queue import FOR_PEOPLE_RETRY, LAST_RETRY, Schedule, WorkQueue

A, B = ("ns", "a"), ("ns", "b")
ERROR = ApiUnavailable("get x", "500")


def test_a_burst_is_one_piece_of_work():
    schedule = Schedule()
    for at in (1.0, 1.1, 1.05):
        schedule.add(A, at)
    assert schedule.take(0.9) is None
    assert schedule.take(1.0) == A
    assert schedule.take(9.0) is None


def test_what_happens_during_the_work_is_looked_at_afterwards():
    schedule = Schedule()
    schedule.add(A, 0)
    assert schedule.take(0) == A
    schedule.add(A, 1)
    assert schedule.take(2) is None
    schedule.done(A, 2, look_again=100)
    assert schedule.take(2) == A
    schedule.done(A, 2, look_again=100)
    assert schedule.next_due() == 102


def test_an_earlier_cause_comes_before_a_later_look():
    schedule = Schedule()
    schedule.add(A, 50)
    schedule.add(A, 1)
    assert schedule.next_due() == 1
    schedule.add(A, 90)
    assert schedule.next_due() == 1


def test_failures_come_slower_each_time_and_success_forgets_them():
    schedule = Schedule()
    waits = []
    now = 0.0
    schedule.add(A, now)
    for _ in range(12):
        assert schedule.take(now) == A
        waits.append(schedule.failed(A, now, ERROR))
        now += waits[-1]
    assert waits[:4] == [0.25, 0.5, 1.0, 2.0]
    assert waits[-1] == LAST_RETRY
    assert schedule.take(now) == A
    schedule.done(A, now)
    schedule.add(A, now)
    assert schedule.take(now) == A
    assert schedule.failed(A, now, ERROR) == 0.25


def test_events_do_not_hurry_a_failure():
    schedule = Schedule()
    schedule.add(A, 0)
    schedule.take(0)
    schedule.add(A, 0)
    schedule.failed(A, 0, ApiForbidden("patch x", "no", status=403))
    assert schedule.next_due() == FOR_PEOPLE_RETRY


def test_the_api_server_is_given_the_time_that_it_asks_for():
    schedule = Schedule()
    schedule.add(A, 0)
    schedule.take(0)
    assert schedule.failed(A, 0, ApiThrottled("get x", "later", status=429, retry_after=7)) == 7


class Machine(RuleBasedStateMachine):
    """No key is lost, and none is worked on twice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()
        self.now = 0.0
        self.wanted: set[tuple[str, str]] = set()
        self.busy: set[tuple[str, str]] = set()

    @rule(key=st.sampled_from([A, B]), delay=st.floats(0, 5))
    def add(self, key, delay):
        self.schedule.add(key, self.now + delay)
        self.wanted.add(key)

    @rule(delay=st.floats(0, 100))
    def take(self, delay):
        self.now += delay
        key = self.schedule.take(self.now)
        if key is not None:
            assert key not in self.busy
            self.busy.add(key)
            self.wanted.discard(key)

    @rule(key=st.sampled_from([A, B]), fails=st.booleans())
    def finish(self, key, fails):
        if key not in self.busy:
            return
        self.busy.discard(key)
        if fails:
            self.schedule.failed(key, self.now, ERROR)
            self.wanted.add(key)
        else:
            self.schedule.done(key, self.now)

    @invariant()
    def nothing_is_lost(self):
        self.schedule.check_integrity()
        assert self.wanted <= set(self.schedule.due) | self.schedule.busy


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


async def test_the_queue_wakes_up_for_what_is_due():
    queue = WorkQueue()
    taking = asyncio.create_task(queue.take())
    queue.add(A, after=0.02)
    queue.add(B, after=0)
    async with asyncio.timeout(5):
        assert await taking == B
        assert await queue.take() == A
    assert queue.length == 2
    queue.done(A)
    queue.failed(B, ERROR)
    assert queue.length == 1


async def test_the_queue_waits_when_there_is_nothing():
    queue = WorkQueue()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await queue.take()
