"""What the router does when stages are missing, wrong, slow, silent or lost. Real gRPC, fake engine."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bench.relay import Relay
from shoal.errors import StageError
from shoal.wire.errors import DigestMismatch, StageFailed, StageUnreachable, WrongPlace
from shoal.wire.messages import SamplingParams, StageState
from shoal_router.generation import GenerationFailed, GenerationRequest, PipelineUnavailable
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan, PlannedPipeline
from shoal_router.pipeline.ring import RingTimes
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_stage.engine.fake import FakeEngine, fake_manifest, greedy_text
from shoal_stage.server.fake import fake_pipeline, start_stage
from shoal_stage.server.stage import Patience
from shoaltest.waiting import until_elsewhere

GREEDY = SamplingParams(temperature=0.0)
SETTINGS = StepLoopSettings(prefill_chunk=16, backoff=0.02, longest_backoff=0.1, recovery_seconds=20.0)
MANIFEST = fake_manifest()
HALVES = ((0, 3), (3, 6))


def plan_at(addresses, ranges=HALVES, digest=MANIFEST.digest):
    return planned_at(addresses, ranges, digest)


class ChangingPlan:
    """A plan that somebody rewrites."""

    def __init__(self, planned: PlannedPipeline) -> None:
        self.planned = planned

    def read(self) -> PlannedPipeline:
        return self.planned


def half(index, **kwargs):
    start, end = HALVES[index]
    hook = kwargs.pop("on_run", None)
    kwargs.setdefault("manifest", MANIFEST)
    return start_stage(lambda: FakeEngine(start, end, on_run=hook), blocks=(start, end), **kwargs)


@asynccontextmanager
async def serving(source, settings=SETTINGS, times=None):
    opener = RingOpener(source, settings.prefill_chunk, times=times or RingTimes())
    loop = StepLoop(opener, settings)
    await loop.start()
    try:
        yield loop
    finally:
        async with asyncio.timeout(5):  # whatever state the stages are in
            await loop.stop()


async def collect(loop, request):
    return [token async for delta in loop.generate(request) for token in delta.tokens]


def open_once(source, seconds=5.0, **kwargs):
    return RingOpener(source, 16, **kwargs).open(deadline_seconds=seconds, progress=lambda line: None)


async def test_case_9_a_stage_is_lost_and_the_stream_goes_on_at_its_replacement_with_the_same_tokens():
    async with half(0) as first, half(1) as second, half(1) as spare:
        source = ChangingPlan(plan_at([first.address, second.address]))
        async with serving(source) as loop:
            await loop.wait_ready(10)
            stream = loop.generate(GenerationRequest("r", (1, 2, 3), GREEDY, 60))
            tokens = [*(await anext(stream)).tokens, *(await anext(stream)).tokens]
            source.planned = plan_at([first.address, spare.address])
            await second.kill()
            async for delta in stream:
                tokens += delta.tokens
            assert tokens == greedy_text((1, 2, 3), 60)
            assert loop.status().ready
            await until_elsewhere(lambda: not first.engine.live and not spare.engine.live)


async def test_case_18_a_stage_that_is_told_to_stop_hands_its_streams_over():
    async with half(0) as first, half(1) as second, half(1) as spare:
        source = ChangingPlan(plan_at([first.address, second.address]))
        async with serving(source) as loop:
            await loop.wait_ready(10)
            requests = [GenerationRequest(str(n), (n, 2), GREEDY, 60) for n in range(4)]
            tasks = [asyncio.create_task(collect(loop, request)) for request in requests]
            await until_elsewhere(lambda: loop.status().steps > 5)
            source.planned = plan_at([first.address, spare.address])
            await second.server.stop()
            assert await asyncio.gather(*tasks) == [greedy_text(request.prompt, 60) for request in requests]


async def test_case_18_a_stage_that_stops_serves_on_until_the_plan_names_another_and_costs_no_attempt():
    settings = replace(SETTINGS, recovery_attempts=0)
    async with half(0) as first, half(1, patience=Patience(hand_over=60.0)) as second, half(1) as spare:
        source = ChangingPlan(plan_at([first.address, second.address]))
        async with serving(source, settings) as loop:
            await loop.wait_ready(10)
            stream = loop.generate(GenerationRequest("r", (1, 2, 3), GREEDY, 200))
            tokens = [*(await anext(stream)).tokens]
            epoch = loop.status().epoch
            stopping = asyncio.create_task(second.server.stop())
            await until_elsewhere(lambda: second.stage.describe().state is StageState.DRAINING)
            for _ in range(20):
                tokens += (await anext(stream)).tokens
            assert loop.status().epoch == epoch, "nobody takes its place yet: it serves on"
            source.planned = plan_at([first.address, spare.address])
            async for delta in stream:
                tokens += delta.tokens
            assert tokens == greedy_text((1, 2, 3), 200)
            assert loop.status().epoch > epoch
            async with asyncio.timeout(10):
                await stopping


@asynccontextmanager
async def relayed_pipeline(on_run=None):
    """Two stages; what the first sends to the second, and hears of it, goes through a relay."""
    async with half(0) as first, half(1, on_run=on_run) as second, Relay(second.address) as relay:
        yield first, second, relay


async def test_silence_between_two_stages_ends_the_epoch_within_three_seconds_and_says_where():
    async with relayed_pipeline() as (first, second, relay):
        source = ChangingPlan(plan_at([first.address, relay.address]))
        async with serving(source) as loop:
            await loop.wait_ready(10)
            stream = loop.generate(GenerationRequest("r", (1, 2, 3), GREEDY, 400))
            tokens = [*(await anext(stream)).tokens]
            started = time.monotonic()
            relay.stall(600.0)
            await until_elsewhere(lambda: not loop.status().ready)
            assert time.monotonic() - started < 3.5
            assert f"next stage at {relay.address} has fallen silent" in loop.status().detail
            source.planned = plan_at([first.address, second.address])
            async for delta in stream:
                tokens += delta.tokens
            assert tokens == greedy_text((1, 2, 3), 400)


async def test_case_5_a_link_that_stands_still_for_two_seconds_is_forgiven():
    async with (
        relayed_pipeline() as (first, _, relay),
        serving(FixedPlan(plan_at([first.address, relay.address]))) as loop,
    ):
        await loop.wait_ready(10)
        pipeline = loop._pipeline
        stream = loop.generate(GenerationRequest("r", (1, 2, 3), GREEDY, 60))
        tokens = [*(await anext(stream)).tokens]
        relay.stall(2.0)
        async for delta in stream:
            tokens += delta.tokens
        assert tokens == greedy_text((1, 2, 3), 60)
        assert loop._pipeline is pipeline


@pytest.mark.slow
async def test_a_stage_that_computes_for_ten_seconds_and_says_so_is_not_lost():
    waited = threading.Event()

    def slow(rows):
        if not waited.is_set() and len(rows[0].tokens) == 1:
            waited.set()
            time.sleep(10)

    async with (
        half(0) as first,
        half(1, on_run=slow) as second,
        serving(FixedPlan(plan_at([first.address, second.address]))) as loop,
    ):
        await loop.wait_ready(10)
        epoch = loop.status().epoch
        tokens = await collect(loop, GenerationRequest("r", (1, 2, 3), GREEDY, 20))
        assert waited.is_set()
        assert tokens == greedy_text((1, 2, 3), 20)
        assert loop.status().epoch == epoch


async def test_a_step_longer_than_the_silence_that_is_allowed_is_not_the_end():
    """The short form of the test above: pulses come while the step runs, so its time does not matter."""
    go_on = threading.Event()

    def slow(rows):
        if len(rows[0].tokens) == 1:
            assert go_on.wait(30)

    async with half(0) as first, half(1, on_run=slow) as second:
        times = RingTimes(pulse=0.3, strikes=2)
        async with serving(FixedPlan(plan_at([first.address, second.address])), times=times) as loop:
            await loop.wait_ready(10)
            answer = asyncio.create_task(collect(loop, GenerationRequest("r", (1, 2, 3), GREEDY, 20)))
            pipeline = loop._pipeline
            await until_elsewhere(lambda: any(each.busy_ms > 1000 for each in pipeline._progress))
            assert loop._pipeline is pipeline
            go_on.set()
            assert await answer == greedy_text((1, 2, 3), 20)
            assert loop._pipeline is pipeline


async def test_a_lost_stage_that_returns_at_its_address_continues_the_stream():
    async with half(0) as first, half(1) as second:
        source = FixedPlan(plan_at([first.address, second.address]))
        async with serving(source) as loop:
            await loop.wait_ready(10)
            stream = loop.generate(GenerationRequest("r", (4, 5), GREEDY, 60))
            tokens = [*(await anext(stream)).tokens]
            await second.kill()
            await until_elsewhere(lambda: not loop.status().ready)
            with pytest.raises(PipelineUnavailable, match="no pipeline is open") as refused:
                await collect(loop, GenerationRequest("r", (9,), GREEDY, 2))
            assert refused.value.retry_after > 0
            async with half(1, listen=second.address):
                async for delta in stream:
                    tokens += delta.tokens
                assert tokens == greedy_text((4, 5), 60)


async def test_case_1_without_a_replacement_the_request_fails_with_the_reason_and_the_service_comes_back():
    settings = StepLoopSettings(prefill_chunk=16, backoff=0.02, longest_backoff=0.1, recovery_seconds=0.5)
    async with (
        half(0) as first,
        half(1) as second,
        serving(FixedPlan(plan_at([first.address, second.address])), settings) as loop,
    ):
        await loop.wait_ready(10)
        stream = loop.generate(GenerationRequest("r", (4, 5), GREEDY, 400))
        await anext(stream)
        await second.kill()
        with pytest.raises(GenerationFailed, match=second.address):
            async for _ in stream:
                pass
        async with half(1, listen=second.address):
            await loop.wait_ready(10)
            assert await collect(loop, GenerationRequest("r", (1,), GREEDY, 3)) == greedy_text((1,), 3)


async def test_case_15_stages_may_start_in_any_order_and_the_status_says_who_is_awaited():
    async with half(1) as second:
        async with half(0) as free:
            address = free.address
        source = FixedPlan(plan_at([address, second.address]))
        async with serving(source) as loop:
            await until_elsewhere(lambda: address in loop.status().detail)
            assert not loop.status().ready
            async with half(0, listen=address):
                await loop.wait_ready(10)
                assert await collect(loop, GenerationRequest("r", (1,), GREEDY, 3)) == greedy_text((1,), 3)


async def test_case_16_opening_has_a_deadline_and_says_which_stage_is_missing():
    async with half(1) as second:
        async with half(0) as free:
            address = free.address
        with pytest.raises(StageUnreachable, match=address):
            await open_once(FixedPlan(plan_at([address, second.address])), seconds=0.3)


async def test_a_plan_that_changes_is_followed_at_once_although_a_stage_that_was_asked_is_silent():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its kernel takes connections, nobody answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with half(0) as first, half(1) as second:
            source = ChangingPlan(plan_at([first.address, address]))
            async with serving(source) as loop:
                with pytest.raises(PipelineUnavailable, match="no pipeline is open"):
                    await loop.wait_ready(0.3)
                started = time.monotonic()
                source.planned = plan_at([first.address, second.address])
                await loop.wait_ready(10)
                assert time.monotonic() - started < 3, "the question's own deadline is 5 s"


async def test_a_loading_stage_is_awaited_and_named():
    loaded = threading.Event()

    def load():
        assert loaded.wait(20)
        return FakeEngine(0, 6)

    async with start_stage(load, manifest=MANIFEST, blocks=(0, 6), wait_ready=False) as stage:
        try:
            source = FixedPlan(plan_at([stage.address], ((0, 6),)))
            async with serving(source) as loop:
                await until_elsewhere(lambda: "is loading" in loop.status().detail)
                loaded.set()
                await loop.wait_ready(10)
        finally:
            loaded.set()


async def test_a_stage_with_another_model_is_refused():
    async with half(0) as first, half(1, manifest=fake_manifest(name="another")) as second:
        with pytest.raises(DigestMismatch, match=f"stage 1 at {second.address} holds model"):
            await open_once(FixedPlan(plan_at([first.address, second.address])))


async def test_a_stage_with_other_blocks_than_planned_is_refused():
    async with half(0) as first, half(1) as second:
        with pytest.raises(WrongPlace, match=r"stage 0 at .* holds blocks 3:6, the plan gives it 0:3"):
            await open_once(FixedPlan(plan_at([second.address, first.address])))


async def test_case_p3_stages_with_different_software_are_refused():
    async with half(0) as first, half(1, versions={"openvino": "2025.0"}) as second:
        with pytest.raises(WrongPlace, match=r"stage 1 at .* runs openvino 2025.0, stage 0 runs missing"):
            await open_once(FixedPlan(plan_at([first.address, second.address])))


async def test_a_chunk_too_large_for_a_stage_is_refused():
    async with half(0, max_frame_bytes=64) as first, half(1) as second:
        with pytest.raises(WrongPlace, match="prefillChunk"):
            await open_once(FixedPlan(plan_at([first.address, second.address])))


async def test_case_12_a_new_router_takes_over_stages_that_the_old_one_left():
    async with fake_pipeline(2, patience=Patience(orphan=0.2, drain=5.0)) as handles:
        source = FixedPlan(
            planned_at([h.address for h in handles], [h.blocks for h in handles], handles[0].manifest.digest)
        )
        async with serving(source) as loop:
            await loop.wait_ready(10)
            stream = loop.generate(GenerationRequest("r", (1, 2), GREEDY, 400))
            await anext(stream)
            epoch = loop.status().epoch
        with pytest.raises(GenerationFailed, match="stopping"):
            async for _ in stream:
                pass
        async with serving(source) as loop:
            await loop.wait_ready(10)
            assert loop.status().epoch > epoch
            assert await collect(loop, GenerationRequest("r", (1, 2), GREEDY, 5)) == greedy_text((1, 2), 5)
            await until_elsewhere(lambda: not any(handle.engine.live for handle in handles))


@asynccontextmanager
async def hanging_stage():
    """A pipeline whose second stage stops computing when told to."""
    hang, go_on = threading.Event(), threading.Event()

    def on_run(rows):
        if hang.is_set():
            assert go_on.wait(30)

    async with half(0) as first, half(1, on_run=on_run) as second:
        try:
            yield [first, second], hang
        finally:
            go_on.set()


async def test_a_step_without_an_answer_ends_the_epoch_with_a_reason():
    async with hanging_stage() as (handles, hang):
        pipeline = await open_once(
            FixedPlan(plan_at([handle.address for handle in handles])),
            times=RingTimes(heartbeat=0.05, heartbeat_deadline=5, first_step=0.3, least_step=0.3),
        )
        loop_settings = StepLoopSettings(recovery_attempts=0)

        class Once:
            async def open(self, *, deadline_seconds, progress):
                return pipeline

        loop = StepLoop(Once(), loop_settings)
        await loop.start()
        try:
            await loop.wait_ready(5)
            hang.set()
            with pytest.raises(GenerationFailed, match=r"no answer to a step for .* one of them hangs"):
                await collect(loop, GenerationRequest("r", (1,), GREEDY, 4))
        finally:
            await loop.stop()


async def test_case_21_closing_never_waits_for_a_stage_that_hangs():
    async with hanging_stage() as (handles, hang):
        async with serving(FixedPlan(plan_at([handle.address for handle in handles]))) as loop:
            await loop.wait_ready(10)
            hang.set()
            task = asyncio.create_task(collect(loop, GenerationRequest("r", (1,), GREEDY, 4)))
            await until_elsewhere(lambda: loop.status().running == 1)
        with pytest.raises(GenerationFailed):
            await task


async def test_an_idle_ring_is_watched_by_heartbeats():
    async with half(0) as first, half(1) as second:
        times = RingTimes(heartbeat=0.02, heartbeat_deadline=5, first_step=5)
        pipeline = await open_once(FixedPlan(plan_at([first.address, second.address])), times=times)
        try:
            waiting = asyncio.create_task(pipeline.result())
            before = pipeline._last_result
            await until_elsewhere(lambda: pipeline._last_result > before)
            await second.kill()
            with pytest.raises(StageError) as lost:
                async with asyncio.timeout(5):
                    await waiting
            assert isinstance(lost.value, StageUnreachable | StageFailed)
        finally:
            await pipeline.close()


async def test_more_steps_than_the_stages_give_credit_for_wait_inside_the_router():
    async with fake_pipeline(2, sequences=64, blocks=512) as handles:
        source = FixedPlan(
            planned_at([h.address for h in handles], [h.blocks for h in handles], handles[0].manifest.digest)
        )
        settings = StepLoopSettings(prefill_chunk=16, micro_batches=40)
        async with serving(source, settings) as loop:
            await loop.wait_ready(10)
            requests = [GenerationRequest(str(n), (n, 1), GREEDY, 6) for n in range(64)]
            texts = await asyncio.gather(*(collect(loop, request) for request in requests))
            assert texts == [greedy_text(request.prompt, 6) for request in requests]
