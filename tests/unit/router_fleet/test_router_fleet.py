"""A fleet of pipelines in memory: choice, takeover, pipelines that come and go; the text is always the solo text."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from shoal.errors import PlanError
from shoal.resource import SpeculativeMode
from shoal.wire.errors import StageFailed, StageUnreachable
from shoal.wire.messages import KvCapacity, SamplingParams
from shoal_router.fleet.fleet import Fleet
from shoal_router.generation import (
    ContextLengthExceeded,
    FinishReason,
    GenerationFailed,
    GenerationRequest,
    PipelineUnavailable,
    QueueFull,
)
from shoal_router.pipeline.fake import FAKE_CAPACITY, FakeOpener, hashed_token
from shoal_router.schedule.fake_drafter import FakeDrafter
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoaltest.answers import collect, solo_answer
from shoaltest.waiting import until

QUICK = StepLoopSettings(prefill_chunk=16, backoff=0.001, longest_backoff=0.01, recovery_seconds=60.0)
SECONDS = 30
"""For anything a test waits for; reached only when something hangs."""


def ask(prompt, max_tokens=8, *, seed=0, **kwargs):
    params = SamplingParams(temperature=0.0, seed=seed, logprobs=kwargs.pop("logprobs", None))
    return GenerationRequest("r", tuple(prompt), params, max_tokens, **kwargs)


class Latch:
    """A gate that is shut from the start, and lets a counted number of steps through, or all of them."""

    def __init__(self):
        self.free = asyncio.Semaphore(0)
        self.wide_open = asyncio.Event()

    async def __call__(self, step):
        del step
        waits = [asyncio.ensure_future(self.free.acquire()), asyncio.ensure_future(self.wide_open.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class Office:
    """The pipelines that are planned, each with an opener that a test can look into."""

    def __init__(self, count, **opener):
        self.planned = list(range(count))
        self.openers = {index: FakeOpener(**opener) for index in range(count)}
        self.unreadable = False

    def read(self):
        if self.unreadable:
            raise PlanError("the plan cannot be read")
        return self.planned

    def pipeline(self, index):
        """The one that was opened last."""
        return self.openers[index].opened[-1]

    def keep_down(self, index):
        """Nothing opens this pipeline until the opener's failures are cleared."""
        self.openers[index].failures.extend(StageUnreachable("stage 0 at b cannot be reached") for _ in range(5000))

    def lose(self, index, *, for_good=False):
        if for_good:
            self.keep_down(index)
        self.pipeline(index).break_off(StageFailed(f"a stage of pipeline {index} failed"))

    @asynccontextmanager
    async def running(self, settings=QUICK, drafter=None, wait_for=None):
        guard = GuardedDrafter(drafter) if drafter is not None else None
        fleet = Fleet(self.read, self.openers.__getitem__, settings, drafter=guard, look_seconds=0.01)
        await fleet.start()
        try:
            wanted = len(self.planned) if wait_for is None else wait_for
            await until(lambda: sum(each.ready for each in fleet.status().pipelines) == wanted)
            yield fleet
        finally:
            await fleet.stop()
            assert all(pipeline.closed for opener in self.openers.values() for pipeline in opener.opened)


def begin(fleet, requests):
    return [asyncio.create_task(collect(fleet, request)) for request in requests]


async def done(tasks):
    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*tasks)


def running_at(fleet):
    return [each.running + each.waiting for each in fleet.status().pipelines]


async def test_requests_are_shared_out_and_each_gets_its_own_answer():
    office = Office(3, gate=(latch := Latch()))
    async with office.running() as fleet:
        requests = [ask([seed, 7], 20, seed=seed) for seed in range(9)]
        tasks = begin(fleet, requests)
        await until(lambda: running_at(fleet) == [3, 3, 3])
        assert (fleet.status().running + fleet.status().waiting, fleet.status().ready) == (9, True)
        latch.wide_open.set()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]
        assert fleet.status().steps == sum(each.steps for each in fleet.status().pipelines) > 0


async def test_a_second_turn_goes_where_its_kv_is():
    office = Office(2)
    async with office.running() as fleet:
        first = ask(range(100), 1, seed=1)
        other = asyncio.create_task(collect(fleet, ask([1] * 20, 300)))
        await until(lambda: running_at(fleet) == [1, 0])
        tokens, _ = await collect(fleet, first)
        await done([other])
        second = ask([*first.prompt, *tokens, 5, 6], 2, seed=1)
        stream = fleet.generate(second)
        async with aclosing(stream):
            delta = await anext(stream)
        assert delta.cached_tokens == 96, "pipeline 1 computed the first turn, though pipeline 0 is as idle"


async def test_case_9_sequences_of_a_lost_pipeline_go_on_at_another_at_once():
    latch = Latch()
    office = Office(2, gate=latch)
    async with office.running() as fleet:
        requests = [ask([seed, 7], 30, seed=seed, logprobs=2) for seed in range(6)]
        tasks = begin(fleet, requests)
        await until(lambda: running_at(fleet) == [3, 3])
        for _ in range(40):
            latch.free.release()
        await until(lambda: all(each.steps > 8 for each in fleet.status().pipelines))
        office.lose(1, for_good=True)
        await until(lambda: running_at(fleet) == [6, 0])
        assert fleet.status().ready
        each = "pipeline 0: 2 stages open in epoch 1; pipeline 1: stage 0 at b cannot be reached"
        await until(lambda: fleet.status().detail == f"1 of 2 pipelines are open: {each}")
        latch.wide_open.set()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]
        assert len(office.openers[1].opened) == 1, "nobody waited for it to come back"
        assert not any(office.pipeline(0).held)


async def test_usage_and_logprobs_of_an_answer_that_moved_are_those_of_one_that_did_not():
    async def deltas(fleet, request):
        return [delta async for delta in fleet.generate(request)]

    async with Office(1).running() as alone:
        await collect(alone, ask(range(40), 1))
        request = ask(range(50), 30, logprobs=3)
        expected = await deltas(alone, request)
    latch = Latch()
    office = Office(2, gate=latch)
    latch.wide_open.set()
    async with office.running() as fleet:
        await collect(fleet, ask(range(40), 1))
        latch.wide_open.clear()
        task = asyncio.create_task(deltas(fleet, request))
        for _ in range(6):
            latch.free.release()
        await until(lambda: latch.free.locked() and running_at(fleet) == [1, 0])
        office.lose(0)
        latch.wide_open.set()
        (found,) = await done([task])
        assert [delta.cached_tokens for delta in found] == [32] * len(expected)
        for name in ("tokens", "logprobs"):
            assert [x for delta in found for x in getattr(delta, name)] == [
                x for delta in expected for x in getattr(delta, name)
            ]
        assert len(office.openers[1].opened) == 1


async def test_while_none_is_open_sequences_wait_for_whichever_opens_first():
    latch = Latch()
    office = Office(2, gate=latch)
    async with office.running() as fleet:
        requests = [ask([seed], 20, seed=seed) for seed in range(4)]
        tasks = begin(fleet, requests)
        await until(lambda: running_at(fleet) == [2, 2])
        for index in (0, 1):
            office.lose(index, for_good=True)
        await until(lambda: fleet.status().detail.count("cannot be reached") == 2)
        assert not fleet.status().ready
        with pytest.raises(PipelineUnavailable, match=r"pipeline 0: .*cannot be reached; pipeline 1: .*") as refused:
            await collect(fleet, ask([9]))
        assert refused.value.retry_after > 0
        latch.wide_open.set()
        office.openers[1].failures.clear()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]
        assert len(office.openers[0].opened) == 1
        assert [each.ready for each in fleet.status().pipelines] == [False, True]


async def test_an_answer_survives_so_many_losses_wherever_they_happen():
    office = Office(2, gate=Latch())
    async with office.running(replace(QUICK, recovery_attempts=2)) as fleet:
        (task,) = begin(fleet, [ask([1], 100)])
        for index in (0, 1, 0):
            await until(lambda index=index: fleet.status().pipelines[index].running == 1)
            await until(lambda: all(each.ready for each in fleet.status().pipelines))
            office.lose(index)
        with pytest.raises(GenerationFailed, match="a stage of pipeline 0 failed"):
            await done([task])


async def test_a_client_that_leaves_after_a_move_frees_its_memory_where_it_is_now():
    latch = Latch()
    office = Office(2, gate=latch)
    async with office.running() as fleet:
        stream = fleet.generate(ask([1, 2, 3], 400))
        latch.free.release()
        await anext(stream)
        office.lose(0, for_good=True)
        await until(lambda: running_at(fleet) == [0, 1])
        await stream.aclose()
        assert running_at(fleet) == [0, 0]
        latch.wide_open.set()
        await until(lambda: not any(office.pipeline(1).held))


async def test_what_another_pipeline_cannot_hold_waits_for_its_own():
    office = Office(2)
    small = KvCapacity(8, 16, 16, 64, 0, shares_blocks=True)
    office.openers[0] = FakeOpener(small)
    async with office.running() as fleet:
        assert fleet.status().max_context == FAKE_CAPACITY.max_context
        large = ask(range(30), 200)
        tasks = begin(fleet, [large])
        await until(lambda: fleet.status().pipelines[1].running == 1)
        office.lose(1)
        assert await done(tasks) == [(solo_answer(large), FinishReason.LENGTH)]
        assert len(office.openers[1].opened) == 2
        with pytest.raises(ContextLengthExceeded, match="512 tokens"):
            await collect(fleet, ask([1] * 600))


async def test_when_one_queue_is_full_the_next_is_asked_and_when_all_are_the_client_is_refused():
    latch = Latch()
    office = Office(2, capacity=KvCapacity(1, 64, 16, 512, 0, shares_blocks=True), gate=latch)
    async with office.running(replace(QUICK, max_waiting=1)) as fleet:
        tasks = begin(fleet, [ask([seed] * 10, 3, seed=seed) for seed in range(4)])
        await until(lambda: running_at(fleet) == [2, 2])
        with pytest.raises(QueueFull):
            await collect(fleet, ask([9]))
        latch.wide_open.set()
        await done(tasks)


async def test_a_cache_is_no_reason_to_be_refused_while_another_pipeline_has_room():
    latch = Latch()
    latch.wide_open.set()
    office = Office(2, capacity=KvCapacity(1, 400, 16, 4096, 0, shares_blocks=True), gate=latch)
    async with office.running(replace(QUICK, prefill_chunk=256, max_waiting=0)) as fleet:
        await collect(fleet, ask(range(3000), 1))
        latch.wide_open.clear()
        tasks = begin(fleet, [ask(range(3000), 2)])
        await until(lambda: running_at(fleet) == [1, 0])
        tasks += begin(fleet, [ask(range(3000), 2)])
        await until(lambda: running_at(fleet) == [1, 1])
        with pytest.raises(QueueFull):
            await collect(fleet, ask([1]))
        latch.wide_open.set()
        first, second = await done(tasks)
        assert first == second


async def test_who_waits_at_a_full_pipeline_goes_to_one_that_has_just_opened():
    latch = Latch()
    office = Office(2, capacity=KvCapacity(2, 64, 16, 512, 0, shares_blocks=True), gate=latch)
    office.keep_down(1)
    async with office.running(wait_for=1) as fleet:
        requests = [ask([seed], 6, seed=seed) for seed in range(5)]
        tasks = begin(fleet, requests)
        await until(lambda: [each.waiting for each in fleet.status().pipelines] == [3, 0])
        office.openers[1].failures.clear()
        await until(lambda: running_at(fleet) == [3, 2])
        latch.wide_open.set()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]


async def test_who_gets_room_because_another_left_stays():
    """Its rows are under way on a pipeline that lives: it could not come back there."""
    latch = Latch()
    office = Office(2, capacity=KvCapacity(3, 8, 16, 128, 0, shares_blocks=True), gate=latch)
    office.keep_down(1)
    async with office.running(wait_for=1) as fleet:
        requests = [ask(range(60), 2), ask([7] * 70, 2), ask([8] * 10, 2)]
        tasks = begin(fleet, requests)
        await until(lambda: [each.waiting for each in fleet.status().pipelines] == [2, 0])
        office.openers[1].failures.clear()
        await until(lambda: fleet.status().pipelines[1].running == 1)
        assert running_at(fleet) == [2, 1]
        latch.wide_open.set()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]


async def test_a_defect_while_a_sequence_moves_fails_it_and_leaves_no_client_waiting(monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("a defect")

    office = Office(2, gate=(latch := Latch()))
    async with office.running() as fleet:
        tasks = begin(fleet, [ask([1], 30)])
        await until(lambda: running_at(fleet) == [1, 0])
        with monkeypatch.context() as patched:
            patched.setattr(StepLoop, "take_over", broken)
            office.lose(0)
            with pytest.raises(GenerationFailed, match="ZeroDivisionError"):
                await done(tasks)
        latch.wide_open.set()
        request = ask([2], 20)
        assert await done(begin(fleet, [request])) == [(solo_answer(request), FinishReason.LENGTH)]
    assert "tending the pipelines met a defect" in caplog.text


async def test_pipelines_that_appear_are_used_and_those_that_vanish_hand_over_what_runs():
    latch = Latch()
    office = Office(1, gate=latch)
    async with office.running() as fleet:
        requests = [ask([seed, 7], 40, seed=seed) for seed in range(6)]
        tasks = begin(fleet, requests[:2])
        await until(lambda: running_at(fleet) == [2])
        office.openers[1] = FakeOpener(gate=latch)
        office.planned = [0, 1]
        await until(lambda: [each.ready for each in fleet.status().pipelines] == [True, True])
        tasks += begin(fleet, requests[2:])
        await until(lambda: running_at(fleet) == [3, 3])
        office.planned = [0]
        await until(lambda: running_at(fleet) == [6])
        await until(lambda: office.pipeline(1).closed)
        latch.wide_open.set()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]
        assert office.pipeline(0) is office.openers[0].opened[0], "the other one was not disturbed"
        assert len(office.openers[1].opened) == 1


async def test_what_no_other_can_hold_ends_on_the_pipeline_that_left_the_plan():
    latch = Latch()
    office = Office(2, gate=latch)
    office.openers[0] = FakeOpener(KvCapacity(8, 16, 16, 64, 0, shares_blocks=True))
    async with office.running() as fleet:
        request = ask(range(30), 100)
        tasks = begin(fleet, [request])
        await until(lambda: fleet.status().pipelines[1].running == 1)
        office.planned = [0]
        await until(lambda: len(fleet.status().pipelines) == 1)
        assert fleet.status().running == 1
        assert not office.pipeline(1).closed
        latch.wide_open.set()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH)]
        await until(lambda: office.pipeline(1).closed)


async def test_a_pipeline_that_left_the_plan_is_not_opened_again_when_it_is_lost():
    latch = Latch()
    office = Office(2, gate=latch)
    office.keep_down(0)
    async with office.running(replace(QUICK, recovery_seconds=0.1), wait_for=1) as fleet:
        tasks = begin(fleet, [ask([1], 30)])
        await until(lambda: fleet.status().pipelines[1].running == 1)
        office.planned = [0]
        await until(lambda: len(fleet.status().pipelines) == 1)
        office.lose(1)
        with pytest.raises(GenerationFailed, match="pipeline 1 is not in the plan any more"):
            await done(tasks)
        assert len(office.openers[1].opened) == 1


async def test_a_plan_that_cannot_be_read_leaves_what_runs_alone():
    office = Office(2)
    async with office.running() as fleet:
        office.unreadable = True
        request = ask([1], 50)
        assert await done(begin(fleet, [request])) == [(solo_answer(request), FinishReason.LENGTH)]
        assert [each.ready for each in fleet.status().pipelines] == [True, True]


async def test_case_28_without_a_plan_the_reason_is_said_and_with_one_it_serves():
    office = Office(1)
    office.unreadable = True
    async with office.running(wait_for=0) as fleet:
        status = fleet.status()
        assert (status.ready, status.detail, status.pipelines) == (False, "the plan cannot be read", ())
        with pytest.raises(PipelineUnavailable, match="the plan cannot be read"):
            await collect(fleet, ask([1]))
        with pytest.raises(PipelineUnavailable, match="the plan cannot be read"):
            await fleet.wait_ready(0)
        office.unreadable = False
        await fleet.wait_ready(SECONDS)
        assert (await collect(fleet, ask([1])))[1] is FinishReason.LENGTH


async def test_a_lone_pipeline_says_what_a_step_loop_says():
    async with Office(1).running() as fleet:
        await collect(fleet, ask([1]))
        status = fleet.status()
        assert status.detail == "2 stages open in epoch 1"
        assert [timing.stage for timing in status.timings] == [0, 1]
        assert (status.pipelines[0].timings, status.pipelines[0].steps) == (status.timings, status.steps)


async def test_no_token_is_drawn_when_none_is_asked_for():
    async with Office(2).running() as fleet:
        assert await collect(fleet, ask([1], 0)) == ([], FinishReason.LENGTH)
        assert fleet.status().steps == 0


async def test_a_stream_that_nobody_reads_is_not_begun():
    async with Office(2).running() as fleet:
        stream = fleet.generate(ask([1]))
        assert running_at(fleet) == [0, 0]
        await stream.aclose()


async def test_stopping_fails_what_runs_and_closes_every_pipeline():
    office = Office(2, gate=Latch())
    async with office.running() as fleet:
        tasks = begin(fleet, [ask([seed]) for seed in range(4)])
        await until(lambda: running_at(fleet) == [2, 2])
        await fleet.stop()
        for task in tasks:
            with pytest.raises(GenerationFailed, match="stopping"):
                await task


async def test_a_defect_at_one_pipeline_fails_its_answers_and_no_others(caplog):
    def broken(ids, params):
        if ids[0] == 13:
            raise ZeroDivisionError("a defect")
        return hashed_token(ids, params)

    office = Office(2, next_token=broken)
    async with office.running() as fleet:
        good = ask([1], 100)
        other = asyncio.create_task(collect(fleet, good))
        await until(lambda: running_at(fleet) == [1, 0])
        with pytest.raises(GenerationFailed, match="ZeroDivisionError"):
            await collect(fleet, ask([13]))
        assert await done([other]) == [(solo_answer(good), FinishReason.LENGTH)]
        await until(lambda: all(each.ready for each in fleet.status().pipelines))
        request = ask([2], 20)
        assert await done(begin(fleet, [request])) == [(solo_answer(request), FinishReason.LENGTH)]
    assert "met a defect" in caplog.text


@pytest.mark.parametrize("mode", [SpeculativeMode.OFF, SpeculativeMode.AUTO, SpeculativeMode.FIXED])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_goes_breaks_and_scales_every_text_is_the_solo_text(seed, mode):
    """One drafter serves all loops and hears each sequence's ids once and in order, wherever they were drawn."""
    rng = random.Random(seed)
    capacity = KvCapacity(sequences=3, blocks=24, block_size=4, max_context=64, bytes=0, shares_blocks=seed % 2 == 0)
    office = Office(4, capacity=capacity, stages=2)
    office.planned = [0, 1]
    drafter = FakeDrafter(lambda seq, ids: hashed_token(ids, ask([1]).params), random.Random(seed), accuracy=0.8)
    settings = replace(QUICK, speculation=SpeculationSettings(mode), recovery_attempts=1000)

    async def client(fleet):
        request = ask(rng.choices(range(3), k=rng.randint(1, 30)), rng.randint(1, 30))
        leave_after = rng.choice([None, None, None, 4])
        tokens: list[int] = []
        refused = True
        while refused:
            try:
                async with aclosing(fleet.generate(request)) as stream:
                    async for delta in stream:
                        tokens += delta.tokens
                        if leave_after is not None and len(tokens) >= leave_after:
                            break
                refused = False
            except PipelineUnavailable:  # as it may be before the first token, never later
                assert not tokens
                await until(lambda: fleet.status().ready)
        expected = solo_answer(request, 64)
        assert tokens == (expected if leave_after is None else expected[: len(tokens)])

    async def chaos(fleet):
        while True:
            for _ in range(rng.randint(5, 60)):
                await asyncio.sleep(0)
            open_ones = [each.index for each in fleet.status().pipelines if each.ready]
            if len(open_ones) > 1:
                if rng.random() < 0.7:
                    office.lose(rng.choice(open_ones))
                else:
                    office.planned = sorted({open_ones[0], *rng.sample(range(4), 2)})

    async with office.running(settings, drafter) as fleet:
        disturbing = asyncio.create_task(chaos(fleet))
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(60):
                group.create_task(client(fleet))
                await asyncio.sleep(0)
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        await until(lambda: fleet.status().running + fleet.status().waiting == 0)
        assert not drafter.texts
        assert len([p for opener in office.openers.values() for p in opener.opened]) > 6
        if mode is not SpeculativeMode.OFF:
            fake = fleet.speculation.sources["fake"]
            assert 0.7 < fake.accepted / fake.verified < 0.9
        for loop in fleet._everywhere:
            if loop.scheduler is not None:
                loop.scheduler.check_integrity()


async def test_a_drafter_that_breaks_at_one_pipeline_is_not_asked_at_another(caplog):
    class Broken(FakeDrafter):
        calls = 0

        def propose(self, seq, suffix, limit):
            self.calls += 1
            raise ZeroDivisionError("a defect")

    drafter = Broken(lambda seq, ids: hashed_token(ids, ask([1]).params), random.Random(0))
    settings = replace(QUICK, speculation=SpeculationSettings(SpeculativeMode.FIXED))
    async with Office(2).running(settings, drafter) as fleet:
        requests = [ask([first], 40) for first in range(4)]
        assert await done(begin(fleet, requests)) == [
            (solo_answer(request), FinishReason.LENGTH) for request in requests
        ]
        assert drafter.calls == 1
    assert caplog.text.count("drafting met a defect") == 1


async def test_drafts_that_arrived_leave_at_every_pipeline():
    class Late(FakeDrafter):
        ready = False

        def propose(self, seq, suffix, limit):
            return super().propose(seq, suffix, limit) if self.ready else None

    drafter = Late(lambda seq, ids: hashed_token(ids, SamplingParams(temperature=0.0, seed=seq)), random.Random(0))
    settings = replace(QUICK, speculation=SpeculationSettings(SpeculativeMode.FIXED, max_tokens=3, max_chunks=3))
    latch = Latch()
    office = Office(2, stages=3, gate=latch)
    async with office.running(settings, drafter) as fleet:
        requests = [ask([seed, 1], 6, seed=seed) for seed in range(2)]
        tasks = begin(fleet, requests)
        await until(lambda: running_at(fleet) == [1, 1])
        drafter.ready = True
        fleet.nudge()
        assert [office.pipeline(index).most_in_flight > 1 for index in (0, 1)] == [True, True]
        latch.wide_open.set()
        assert await done(tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]
