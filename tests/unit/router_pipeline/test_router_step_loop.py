"""The step loop on a pipeline in memory: streams, cancellation, several steps in flight, lost pipelines."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import deque
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shoal.resource import SpeculativeMode
from shoal.wire.errors import StageFailed, StageUnreachable
from shoal.wire.messages import KvCapacity, SamplingParams
from shoal_router.generation import (
    ContextLengthExceeded,
    FinishReason,
    GenerationFailed,
    GenerationRequest,
    PipelineUnavailable,
    QueueFull,
)
from shoal_router.pipeline.fake import FakeOpener, hashed_token
from shoal_router.schedule.fake_drafter import FakeDrafter
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoaltest.answers import collect, solo_answer
from shoaltest.waiting import until

GREEDY = SamplingParams(temperature=0.0)
QUICK = StepLoopSettings(prefill_chunk=16, backoff=0.001, longest_backoff=0.01, recovery_seconds=5.0)


def ask(prompt, max_tokens=8, **kwargs):
    return GenerationRequest("r", tuple(prompt), kwargs.pop("params", GREEDY), max_tokens, **kwargs)


@asynccontextmanager
async def running(opener, settings=QUICK, drafter=None):
    guard = GuardedDrafter(drafter) if drafter is not None else None
    loop = StepLoop(opener, settings, drafter=guard)
    await loop.start()
    try:
        await loop.wait_ready(5)
        yield loop
    finally:
        await loop.stop()


async def check_solo(loop, request, leave_after):
    """Its text is what it would be alone, also where its client leaves after so many tokens."""
    tokens: list[int] = []
    async with aclosing(loop.generate(request)) as stream:
        async for delta in stream:
            tokens += delta.tokens
            if leave_after is not None and len(tokens) >= leave_after:
                break
    expected = solo_answer(request, 64)
    assert tokens == (expected if leave_after is None else expected[: len(tokens)])


class Latch:
    """A gate that lets a counted number of steps through."""

    def __init__(self):
        self.free = asyncio.Semaphore(0)
        self.waiting = 0

    async def __call__(self, step):
        self.waiting += 1
        try:
            await self.free.acquire()
        finally:
            self.waiting -= 1


async def test_a_request_streams_its_tokens_and_ends_with_a_reason():
    async with running(FakeOpener()) as loop:
        request = ask([1, 2, 3], 5)
        assert await collect(loop, request) == (solo_answer(request), FinishReason.LENGTH)
        full = solo_answer(request)
        stopped = ask([1, 2, 3], 5, stop_token_ids=frozenset({full[2]}))
        assert await collect(loop, stopped) == (full[:3], FinishReason.STOP)


async def test_the_answer_ends_at_the_context_and_a_prompt_beyond_it_is_refused():
    capacity = KvCapacity(2, 8, 16, 64, 0, shares_blocks=False)
    async with running(FakeOpener(capacity)) as loop:
        request = ask([1] * 60, None)
        tokens, finish = await collect(loop, request)
        assert (tokens, finish) == (solo_answer(request, 64), FinishReason.LENGTH)
        assert len(tokens) == 4
        with pytest.raises(ContextLengthExceeded, match=r"64 tokens.*64 tokens"):
            await collect(loop, ask([1] * 64))


async def test_no_token_is_drawn_when_none_is_asked_for():
    async with running(FakeOpener()) as loop:
        assert await collect(loop, ask([1], 0)) == ([], FinishReason.LENGTH)


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("stages", [1, 3])
async def test_random_requests_with_random_cancels_equal_their_solo_answers(stages, shares):
    capacity = KvCapacity(sequences=6, blocks=20, block_size=4, max_context=64, bytes=0, shares_blocks=shares)
    opener = FakeOpener(capacity, stages)
    rng = random.Random(stages)
    started = 0

    async def client(loop, seed):
        request = ask(rng.choices(range(3), k=rng.randint(1, 40)), rng.randint(1, 20), params=SamplingParams(seed=seed))
        leave_after = rng.choice([None, None, 1, 3])
        await check_solo(loop, request, leave_after)

    async with running(opener) as loop:
        async with asyncio.TaskGroup() as group:
            for seed in range(100):
                group.create_task(client(loop, seed))
                started += 1
                if seed % 7 == 0:
                    await asyncio.sleep(0)
        pipeline = opener.opened[0]
        await until(lambda: not any(pipeline.held))
        load = loop._scheduler.load
        assert (load.running, load.waiting, load.free_blocks) == (0, 0, load.blocks)
        loop._scheduler.check_integrity()
        assert pipeline.most_in_flight >= stages
        status = loop.status()
        assert status.steps > 0
        assert [timing.compute_us for timing in status.timings] == [1000 * status.steps] * stages


async def test_as_many_steps_as_stages_are_in_flight():
    latch = Latch()
    opener = FakeOpener(stages=3, gate=latch)
    async with running(opener) as loop, asyncio.TaskGroup() as group:
        for seed in range(6):
            group.create_task(collect(loop, ask([seed], 4)))
        await until(lambda: opener.opened[0].most_in_flight >= 3)
        for _ in range(60):
            latch.free.release()


async def test_case_69_a_client_that_leaves_frees_its_memory_on_every_stage():
    latch = Latch()
    opener = FakeOpener(stages=3, gate=latch)
    async with running(opener) as loop:
        stream = loop.generate(ask([1, 2, 3], 400))
        for _ in range(5):
            latch.free.release()
            await anext(stream)
        pipeline = opener.opened[0]
        assert all(pipeline.held)
        await stream.aclose()
        latch.free.release()  # the one step that was in flight
        await until(lambda: not any(pipeline.held))
        assert loop.status().running == 0
        load = loop._scheduler.load
        assert load.free_blocks == load.blocks


async def test_a_cancelled_task_frees_its_sequence():
    opener = FakeOpener()
    async with running(opener) as loop:
        task = asyncio.create_task(collect(loop, ask([1, 2, 3], 400)))
        await until(lambda: any(opener.opened[0].held))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not any(opener.opened[0].held))


async def test_an_iterator_that_is_forgotten_frees_its_sequence():
    opener = FakeOpener()
    async with running(opener) as loop:
        stream = loop.generate(ask([1, 2, 3], 400))
        await anext(stream)
        del stream
        gc.collect()
        await until(lambda: not any(opener.opened[0].held))
        assert loop.status().running == 0


async def test_a_full_queue_refuses_with_a_time_to_retry():
    latch = Latch()
    capacity = KvCapacity(1, 32, 16, 512, 0, shares_blocks=True)
    settings = StepLoopSettings(max_waiting=1)
    async with running(FakeOpener(capacity, gate=latch), settings) as loop:
        tasks = [asyncio.create_task(collect(loop, ask([seed], 2))) for seed in range(2)]
        await until(lambda: loop.status().waiting == 1)
        with pytest.raises(QueueFull) as refused:
            await collect(loop, ask([9]))
        assert refused.value.retry_after >= 1
        for _ in range(8):
            latch.free.release()
        await asyncio.gather(*tasks)


async def test_case_9_a_lost_pipeline_is_opened_again_and_the_streams_go_on_with_the_same_tokens():
    opener = FakeOpener(stages=2)
    async with running(opener) as loop:
        requests = [ask([seed, 7], 30, params=SamplingParams(seed=seed)) for seed in range(4)]
        tasks = [asyncio.create_task(collect(loop, request)) for request in requests]
        for lost in range(2):
            await until(lambda lost=lost: len(opener.opened) > lost and opener.opened[lost].most_in_flight > 1)
            await until(lambda lost=lost: loop.status().steps > 5)
            opener.failures.extend([StageUnreachable("stage at b cannot be reached")] * 2)
            opener.opened[lost].break_off(StageFailed("stage at b failed"))
        assert await asyncio.gather(*tasks) == [(solo_answer(request), FinishReason.LENGTH) for request in requests]
        assert loop.status().epoch == 3
        assert opener.opened[0].closed
        assert opener.opened[1].closed


async def test_requests_fail_with_the_reason_when_the_pipeline_is_lost_too_often():
    opener = FakeOpener()
    settings = StepLoopSettings(backoff=0.001, recovery_attempts=1)
    async with running(opener, settings) as loop:
        task = asyncio.create_task(collect(loop, ask([1], 400)))
        for lost in range(2):
            await until(lambda lost=lost: len(opener.opened) > lost and any(opener.opened[lost].held))
            opener.opened[lost].break_off(StageFailed("stage at b failed: out of memory"))
        with pytest.raises(GenerationFailed, match="stage at b failed: out of memory"):
            await task
        await until(lambda: len(opener.opened) == 3 and loop.status().ready)
        request = ask([5], 4)
        assert (await collect(loop, request))[0] == solo_answer(request)


async def test_requests_fail_when_the_pipeline_does_not_come_back_in_time_and_new_ones_are_refused():
    opener = FakeOpener()
    settings = StepLoopSettings(backoff=0.001, longest_backoff=0.01, recovery_seconds=0.05)
    async with running(opener, settings) as loop:
        task = asyncio.create_task(collect(loop, ask([1], 400)))
        await until(lambda: any(opener.opened[0].held))
        opener.failures.extend([StageUnreachable("stage at b cannot be reached")] * 30)
        opener.opened[0].break_off(StageFailed("gone"))
        await until(lambda: not loop.status().ready)
        with pytest.raises(PipelineUnavailable, match="no pipeline is open") as refused:
            await collect(loop, ask([2]))
        assert refused.value.retry_after > 0
        with pytest.raises(GenerationFailed, match="stage at b cannot be reached"):
            await task
        await loop.wait_ready(5)  # the service is back without a restart
        assert len(await collect(loop, ask([2], 3))) == 2


async def test_a_defect_fails_the_requests_and_the_loop_goes_on(caplog):
    opener = FakeOpener()

    def broken(ids, params):
        if ids[0] == 13:
            raise ZeroDivisionError("a defect")
        return hashed_token(ids, params)

    opener.next_token = broken
    async with running(opener) as loop:
        with pytest.raises(GenerationFailed, match="ZeroDivisionError"):
            await collect(loop, ask([13]))
        await loop.wait_ready(5)
        request = ask([1], 4)
        assert (await collect(loop, request))[0] == solo_answer(request)
    assert "met a defect" in caplog.text


async def test_stopping_fails_what_runs_and_closes_the_pipeline():
    opener = FakeOpener(gate=Latch())
    async with running(opener) as loop:
        task = asyncio.create_task(collect(loop, ask([1])))
        await until(lambda: loop.status().running == 1)
        await loop.stop()
        with pytest.raises(GenerationFailed, match="stopping"):
            await task
        assert opener.opened[0].closed
        with pytest.raises(PipelineUnavailable):
            await collect(loop, ask([1]))


async def test_case_28_requests_are_refused_with_the_reason_while_the_stages_load():
    opener = FakeOpener(failures=deque([StageUnreachable("stage at a cannot be reached")]))
    settings = StepLoopSettings(backoff=0.05)
    loop = StepLoop(opener, settings)
    await loop.start()
    try:
        with pytest.raises(PipelineUnavailable):
            await collect(loop, ask([1]))
        await until(lambda: "cannot be reached" in loop.status().detail)
        assert not loop.status().ready
        with pytest.raises(PipelineUnavailable, match="cannot be reached"):
            await loop.wait_ready(0)
        await loop.wait_ready(5)
        assert loop.status().ready
    finally:
        await loop.stop()


@pytest.mark.parametrize(
    "request_",
    [
        ask([1 << 20]),
        ask([-1]),
        ask([1], params=SamplingParams(temperature=float("nan"))),
        ask([1], params=SamplingParams(top_p=0.0)),
        ask([1], params=SamplingParams(seed=-1)),
        ask([1], params=SamplingParams(top_k=-1)),
        ask([1], params=SamplingParams(logit_bias=((1 << 20, 1.0),))),
        ask([1], params=SamplingParams(logit_bias=((1, float("nan")),))),
        ask([1], params=SamplingParams(presence_penalty=float("inf"))),
        ask([1], params=SamplingParams(repetition_penalty=1e-40)),
        ask([1], params=SamplingParams(frequency_penalty=float("nan"))),
    ],
)
async def test_a_request_that_a_stage_would_refuse_hurts_only_itself(request_):
    async with running(FakeOpener()) as loop:
        other = asyncio.create_task(collect(loop, ask([1], 20)))
        with pytest.raises(ValueError, match="out of range"):
            await collect(loop, request_)
        await other
        assert loop.status().epoch == 1


def speculating(**kwargs):
    return replace(QUICK, speculation=SpeculationSettings(**kwargs))


def drafting(seed=0, **kwargs):
    """Drafts for requests whose seed is their sequence's number: the order in which they were made."""
    return FakeDrafter(
        lambda seq, ids: hashed_token(ids, SamplingParams(seed=seq)), random.Random(seed), accuracy=0.8, **kwargs
    )


@pytest.mark.parametrize("settings", [{"mode": SpeculativeMode.AUTO}, {"mode": SpeculativeMode.FIXED, "max_chunks": 6}])
@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("stages", [1, 3])
async def test_speculation_changes_no_text_whatever_comes_goes_and_breaks(stages, shares, settings):
    capacity = KvCapacity(sequences=4, blocks=24, block_size=4, max_context=64, bytes=0, shares_blocks=shares)
    opener, drafter = FakeOpener(capacity, stages), drafting()
    rng = random.Random(stages)

    async def client(loop, seed):
        request = ask(rng.choices(range(3), k=rng.randint(1, 30)), rng.randint(1, 30), params=SamplingParams(seed=seed))
        leave_after = rng.choice([None, None, None, 4])
        await check_solo(loop, request, leave_after)

    async with running(opener, speculating(**settings), drafter) as loop:
        async with asyncio.TaskGroup() as group:
            for seed in range(40):
                group.create_task(client(loop, seed))
                await asyncio.sleep(0)
                if seed == 30:
                    opener.opened[-1].break_off(StageFailed("stage at b failed"))
                    await until(lambda: len(opener.opened) == 2)
        await until(lambda: not any(opener.opened[1].held))
        loop._scheduler.check_integrity()
        assert loop.status().epoch == 2
        fake = loop.speculation.sources["fake"]
        assert 0.7 < fake.accepted / fake.verified < 0.9
        assert fake.verified < fake.proposed
        assert not drafter.texts


async def test_a_drafter_without_a_mode_that_asks_for_it_is_left_alone():
    drafter = drafting()
    async with running(FakeOpener(), QUICK, drafter) as loop:
        await collect(loop, ask([1], 4, params=SamplingParams(seed=0)))
        assert not drafter.groups
        assert not loop.speculation.sources


async def test_a_drafter_that_has_more_to_offer_is_asked_again_when_it_says_so():
    """Drafts of a model come while the head is under way already: they leave behind it, without waiting for it."""

    class Late(FakeDrafter):
        ready = False

        def propose(self, seq, suffix, limit):
            return super().propose(seq, suffix, limit) if self.ready else None

    latch = Latch()
    opener = FakeOpener(stages=3, gate=latch)
    drafter = Late(lambda seq, ids: hashed_token(ids, SamplingParams(seed=seq)), random.Random(0))
    settings = speculating(mode=SpeculativeMode.FIXED, max_tokens=3, max_chunks=3)
    async with running(opener, settings, drafter) as loop:
        request = ask([1, 2], 6, params=SamplingParams(seed=0))
        task = asyncio.create_task(collect(loop, request))
        await until(lambda: opener.opened[0].most_in_flight == 1)
        loop.nudge()
        assert opener.opened[0].most_in_flight == 1
        drafter.ready = True
        loop.nudge()
        assert opener.opened[0].most_in_flight > 1
        for _ in range(20):
            latch.free.release()
        assert await task == (solo_answer(request), FinishReason.LENGTH)


async def test_a_drafter_hears_in_which_group_a_request_is():
    drafter = drafting()
    async with running(FakeOpener(), speculating(mode=SpeculativeMode.AUTO), drafter) as loop:
        await collect(loop, ask([1], 4, params=SamplingParams(seed=0), group="key-1"))
        assert drafter.groups == {0: "key-1"}
        assert drafter.ended == {0}


@pytest.mark.parametrize("call", ["begin", "propose", "commit", "end"])
async def test_a_defect_of_the_drafter_ends_speculation_and_no_answer(call, caplog):
    def broken(*_):
        raise ZeroDivisionError("a defect")

    drafter = drafting()
    drafter = SimpleNamespace(**{name: getattr(drafter, name) for name in ("begin", "propose", "commit", "end")})
    setattr(drafter, call, broken)
    async with running(FakeOpener(), speculating(mode=SpeculativeMode.FIXED), drafter) as loop:
        for _ in range(2):
            request = ask([13], 8, params=SamplingParams(seed=0))
            assert (await collect(loop, request))[0] == solo_answer(request)
        assert loop.status().epoch == 1
    assert caplog.text.count("drafting met a defect") == 1
