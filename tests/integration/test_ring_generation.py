"""The whole path from a request to its tokens over real gRPC stages with the fake engine."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

import pytest

from shoal.wire.messages import Row, SamplingParams, SequenceStart, Step
from shoal_router.generation import FinishReason, GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_stage.engine.fake import greedy_text
from shoal_stage.server.fake import fake_pipeline
from shoaltest.waiting import until_elsewhere

GREEDY = SamplingParams(temperature=0.0)
SETTINGS = StepLoopSettings(prefill_chunk=16, backoff=0.05, longest_backoff=0.2)


def plan_of(handles):
    addresses = [handle.address for handle in handles]
    return FixedPlan(planned_at(addresses, [handle.blocks for handle in handles], handles[0].manifest.digest))


@asynccontextmanager
async def serving(handles, settings=SETTINGS):
    loop = StepLoop(RingOpener(plan_of(handles), prefill_chunk=settings.prefill_chunk), settings)
    await loop.start()
    try:
        await loop.wait_ready(20)
        yield loop
    finally:
        await loop.stop()


async def collect(loop, request, leave_after=None):
    tokens, finish = [], None
    async with aclosing(loop.generate(request)) as stream:
        async for delta in stream:
            tokens += delta.tokens
            finish = delta.finish
            if leave_after is not None and len(tokens) >= leave_after:
                break
    return tokens, finish


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 3])
async def test_text_is_that_of_plain_decoding_for_every_split_and_engine(stages, paged):
    async with fake_pipeline(stages, paged=paged) as handles, serving(handles) as loop:
        prompt = tuple(range(40))
        tokens, finish = await collect(loop, GenerationRequest("r", prompt, GREEDY, 12))
        assert tokens == greedy_text(prompt, 12)
        assert finish is FinishReason.LENGTH
        status = loop.status()
        assert status.ready
        assert [timing.stage for timing in status.timings] == list(range(stages))
        await until_elsewhere(lambda: not any(handle.engine.live for handle in handles))


@pytest.mark.parametrize("paged", [True, False])
async def test_200_random_requests_with_random_cancels_equal_their_solo_answers(paged):
    rng = random.Random(7)
    jobs = []
    for number in range(200):
        prompt = tuple(rng.choices(range(4), k=rng.randint(1, 40)))
        params = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=number)
        request = GenerationRequest(str(number), prompt, params, rng.randint(1, 12))
        jobs.append((request, rng.choice([None, None, None, 1, 4])))
    async with fake_pipeline(1, paged=False, sequences=1) as handles, serving(handles) as loop:
        solo = [await collect(loop, request) for request, _ in jobs]
    capacity = {"sequences": 8, "blocks": 60, "block_size": 4, "max_context": 64}
    limit = asyncio.Semaphore(32)
    async with fake_pipeline(2, paged=paged, **capacity) as handles, serving(handles) as loop:

        async def run(index):
            request, leave_after = jobs[index]
            async with limit:
                tokens, finish = await collect(loop, request, leave_after)
            expected, reason = solo[index]
            if leave_after is None:
                assert (tokens, finish) == (expected, reason)
            else:
                assert tokens == expected[: len(tokens)]

        await asyncio.gather(*(run(index) for index in range(len(jobs))))
        await until_elsewhere(lambda: not any(handle.engine.live for handle in handles))
        load = loop._scheduler.load
        assert (load.running, load.waiting, load.free_blocks) == (0, 0, load.blocks)
        loop._scheduler.check_integrity()


async def test_a_frame_of_long_block_tables_and_histories_passes_every_hop():
    """Prompts from the prefix cache bring all their ids with them: more than a megabyte when they are long."""
    table = (0, 1) * 600_000
    row = Row(1, 0, 0, (5, 6, 7), 3, True, blocks=table, start=SequenceStart(GREEDY, 3))
    async with fake_pipeline(2) as handles:
        pipeline = await RingOpener(plan_of(handles)).open(deadline_seconds=20, progress=lambda _: None)
        try:
            pipeline.submit(Step((row,)))
            async with asyncio.timeout(20):
                (outcome,) = (await pipeline.result()).outcomes
            assert list(outcome.tokens) == greedy_text([5, 6, 7], 1)
        finally:
            await pipeline.close()


async def test_case_69_a_client_that_leaves_frees_its_memory_on_all_stages_within_a_second():
    async with fake_pipeline(3) as handles, serving(handles) as loop:
        stream = loop.generate(GenerationRequest("r", (1, 2, 3), GREEDY, 400))
        for _ in range(5):
            await anext(stream)
        assert all(handle.engine.live for handle in handles)
        await stream.aclose()
        await until_elsewhere(lambda: not any(handle.engine.live for handle in handles), seconds=1)
        assert loop.status().running == 0


async def test_the_second_of_two_prompts_with_a_common_beginning_reuses_it():
    async with fake_pipeline(2, block_size=16) as handles, serving(handles) as loop:
        shared = tuple(range(100))
        for tail, cached in ((200, 0), (201, 96)):
            prompt = (*shared, tail)
            deltas = [delta async for delta in loop.generate(GenerationRequest("r", prompt, GREEDY, 4))]
            assert [token for delta in deltas for token in delta.tokens] == greedy_text(prompt, 4)
            assert {delta.cached_tokens for delta in deltas} == {cached}


async def test_chunks_of_one_prompt_run_on_all_stages_at_once():
    """Pipelined prefill: while the last stage is held at a chunk, the first one gets on with the next ones."""
    held = threading.Event()
    seen: list[tuple[int, int]] = []

    def on_run(stage, rows):
        seen.append((stage, rows[0].past_len))
        if stage == 1 and rows[0].past_len == 0:
            assert held.wait(20)

    async with fake_pipeline(2, on_run=on_run) as handles, serving(handles) as loop:
        prompt = tuple(range(64))
        task = asyncio.create_task(collect(loop, GenerationRequest("r", prompt, GREEDY, 2)))
        try:
            await until_elsewhere(lambda: {(0, 16), (1, 0)} <= set(seen))
        finally:
            held.set()
        tokens, _ = await task
        assert tokens == greedy_text(prompt, 2)
        starts = [past for stage, past in seen if stage == 0]
        assert all(later - earlier in (1, 16) for earlier, later in pairwise(starts))


async def test_micro_batches_run_on_all_stages_at_once():
    """The last stage is held at the first micro-batch until the first stage runs the second one."""
    second_began = threading.Event()
    begun = [0, 0]

    def on_run(stage, rows):
        if any(row.start is not None for row in rows):
            return  # the prompts
        begun[stage] += 1
        if begun[0] == 2:
            second_began.set()
        if stage == 1:
            assert second_began.wait(20)

    settings = StepLoopSettings(prefill_chunk=16, recovery_attempts=0)
    async with fake_pipeline(2, on_run=on_run) as handles, serving(handles, settings) as loop:
        requests = [GenerationRequest(str(n), (n, 9), GREEDY, 8) for n in range(2)]
        texts = await asyncio.gather(*(collect(loop, request) for request in requests))
        assert [tokens for tokens, _ in texts] == [greedy_text(request.prompt, 8) for request in requests]
