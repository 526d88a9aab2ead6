"""The ring's own rules, on calls in memory: order, epochs, credit, heartbeats, deadlines, closing."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from shoal.errors import StageError
from shoal.wire.codec import decode_frame, encode_credit, encode_result
from shoal.wire.errors import InvalidFrame, StageFailed, StageNotReady, StageUnreachable
from shoal.wire.messages import KvCapacity, Release, Row, RowOutcome, StageProgress, Step, StepResult
from shoal.wire.stage_pb2 import Credit
from shoal_router.pipeline.interface import PipelineFacts
from shoal_router.pipeline.ring import RingPipeline, RingTimes
from shoaltest.waiting import until

FACTS = PipelineFacts(5, 2, "d" * 64, KvCapacity(4, 8, 16, 64, 0, True), 32, addresses=("a:1", "b:2"))
STEP = Step(rows=(Row(seq=1, version=0, past_len=0, tokens=(7,), known=1, sample=True),))
QUIET = RingTimes(heartbeat=30.0)


class Call:
    """A gRPC call: what is put into `incoming` is read; an exception in it is raised."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue = asyncio.Queue()
        self.written: list = []
        self.cancelled = asyncio.Event()

    async def read(self):
        reading = asyncio.ensure_future(self.incoming.get())
        cancelled = asyncio.ensure_future(self.cancelled.wait())
        try:
            await asyncio.wait([reading, cancelled], return_when=asyncio.FIRST_COMPLETED)
            if self.cancelled.is_set():
                raise asyncio.CancelledError
            if isinstance(item := reading.result(), BaseException):
                raise item
            return item
        finally:
            reading.cancel()
            cancelled.cancel()

    async def write(self, message):
        self.written.append(decode_frame(message))

    def cancel(self):
        self.cancelled.set()


class Channel:
    def __init__(self, hangs=False):
        self.hangs = hangs

    async def close(self, grace):
        if self.hangs:
            await asyncio.Event().wait()


def refused(details):
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.fixture
def calls():
    return Call(), Call()


@pytest.fixture
async def ring(calls):
    run, results = calls
    pipeline = RingPipeline(FACTS, [Channel()], run, results, QUIET)
    run.incoming.put_nowait(Credit(frames=8))
    yield pipeline
    await pipeline.close()


def give(call, number, epoch=5, **kwargs):
    call.incoming.put_nowait(encode_result(StepResult(epoch, number, **kwargs)))


async def test_frames_are_numbered_in_order_and_results_answer_them_in_order(ring, calls):
    run, results = calls
    ring.submit(STEP)
    ring.release([1, 2])
    ring.submit(STEP)
    await until(lambda: len(run.written) == 3)
    assert [(frame.epoch, frame.number) for frame in run.written] == [(5, 0), (5, 1), (5, 2)]
    assert run.written[1].body == Release((1, 2))
    outcome = RowOutcome(1, 0, 1, (3,))
    give(results, 0, outcomes=(outcome,))
    give(results, 2)
    assert (await ring.result()).outcomes == (outcome,)
    assert (await ring.result()).number == 2


@pytest.mark.parametrize(
    ("number", "epoch", "heartbeat"), [(1, 5, None), (0, 4, None), (0, 5, 1)], ids=["order", "epoch", "kind"]
)
async def test_case_23_a_result_that_is_not_due_ends_the_epoch(ring, calls, number, epoch, heartbeat):
    ring.submit(STEP)
    give(calls[1], number, epoch, heartbeat=heartbeat)
    with pytest.raises(InvalidFrame):
        await ring.result()
    with pytest.raises(InvalidFrame):
        await ring.result()


async def test_a_result_that_nobody_waits_for_ends_the_epoch(ring, calls):
    give(calls[1], 0)
    with pytest.raises(InvalidFrame, match="nothing is due"):
        await ring.result()


async def test_frames_wait_for_credit(ring, calls):
    run, _ = calls
    for _ in range(10):
        ring.submit(STEP)
    await until(lambda: len(run.written) == 8)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(run.written) == 8
    run.incoming.put_nowait(Credit(frames=1))
    await until(lambda: len(run.written) == 9)


async def test_the_first_stages_reason_reaches_whoever_waits_for_results(ring, calls):
    waiting = asyncio.create_task(ring.result())
    calls[0].incoming.put_nowait(refused("next stage at b:2 ended the stream"))
    with pytest.raises(StageUnreachable, match=r"stage at a:1 cannot be reached: next stage at b:2"):
        await waiting


@pytest.mark.parametrize(("which", "where"), [(0, "a:1"), (1, "b:2")])
async def test_a_stream_that_ends_ends_the_epoch(ring, calls, which, where):
    calls[which].incoming.put_nowait(grpc.aio.EOF)
    with pytest.raises(StageUnreachable, match=f"{where} ended the stream"):
        await ring.result()


async def test_what_is_submitted_after_the_end_is_dropped(ring, calls):
    calls[0].incoming.put_nowait(grpc.aio.EOF)
    with pytest.raises(StageUnreachable):
        await ring.result()
    ring.submit(STEP)
    with pytest.raises(StageUnreachable):
        await ring.result()


async def test_cancelling_the_reader_is_not_the_end_of_the_epoch(ring, calls):
    waiting = asyncio.create_task(ring.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ring.submit(STEP)
    give(calls[1], 0)
    assert (await ring.result()).number == 0


async def test_an_idle_ring_is_asked_for_a_heartbeat_and_its_answer_is_swallowed(calls):
    run, results = calls
    ring = RingPipeline(FACTS, [Channel()], run, results, RingTimes(heartbeat=0.01))
    try:
        run.incoming.put_nowait(Credit(frames=8))
        await until(lambda: len(run.written) >= 1)
        beat = run.written[0]
        give(results, beat.number, heartbeat=beat.body.nonce)
        ring.submit(STEP)
        give(results, beat.number + 1)
        assert (await ring.result()).number == beat.number + 1
    finally:
        await ring.close()


@pytest.mark.parametrize(
    ("times", "step", "match"),
    [
        (RingTimes(heartbeat=0.01, heartbeat_deadline=0.03), False, "no answer to a heartbeat"),
        (RingTimes(heartbeat=0.01, heartbeat_deadline=30, first_step=0.03), True, "no answer to a step"),
    ],
)
async def test_silence_ends_the_epoch_and_names_the_stages(calls, times, step, match):
    ring = RingPipeline(FACTS, [Channel()], *calls, times)
    try:
        calls[0].incoming.put_nowait(Credit(frames=8))
        if step:
            ring.submit(STEP)
        with pytest.raises(StageFailed, match=rf"{match} .* a:1, b:2: one of them hangs"):
            async with asyncio.timeout(5):
                await ring.result()
    finally:
        await ring.close()


async def test_silence_of_the_first_stage_ends_the_epoch_and_any_word_of_it_counts(calls):
    ring = RingPipeline(FACTS, [Channel()], *calls, RingTimes(pulse=0.02, strikes=10))
    try:
        waiting = asyncio.create_task(ring.result())
        for _ in range(30):
            calls[0].incoming.put_nowait(encode_credit(0, ()))
            await asyncio.sleep(0.01)
        assert not waiting.done()
        async with asyncio.timeout(5):
            with pytest.raises(StageUnreachable, match="a:1 has fallen silent"):
                await waiting
    finally:
        await ring.close()


async def test_a_result_that_was_sent_and_does_not_arrive_ends_the_epoch(calls):
    ring = RingPipeline(FACTS, [Channel()], *calls, RingTimes(pulse=0.01, strikes=5))
    try:
        ring.submit(STEP)
        waiting = asyncio.create_task(ring.result())

        async def pulses():
            while True:
                calls[0].incoming.put_nowait(encode_credit(0, (StageProgress(0, 1), StageProgress(1, 1))))
                await asyncio.sleep(0.005)

        pulsing = asyncio.create_task(pulses())
        async with asyncio.timeout(5):
            with pytest.raises(StageUnreachable, match="b:2 has done frame 0, but its result does not arrive"):
                await waiting
        pulsing.cancel()
    finally:
        await ring.close()


async def test_a_step_is_waited_for_while_any_stage_gets_on_with_its_work(calls):
    times = RingTimes(strikes=1000, heartbeat=0.01, first_step=0.1, least_step=0.1)
    ring = RingPipeline(FACTS, [Channel()], *calls, times)
    try:
        ring.submit(STEP)
        waiting = asyncio.create_task(ring.result())
        for done in range(30):
            calls[0].incoming.put_nowait(encode_credit(0, (StageProgress(0, done, 5), StageProgress(1, 0))))
            await asyncio.sleep(0.01)
        assert not waiting.done()
        async with asyncio.timeout(5):
            with pytest.raises(StageFailed, match=r"hangs \(stage 0 has done 29 frames, stage 1 has done 0 frames; f"):
                await waiting
    finally:
        await ring.close()


async def test_case_18_a_stage_that_stops_is_left_when_the_plan_names_another(calls):
    moved = False
    ring = RingPipeline(FACTS, [Channel()], *calls, QUIET, lambda: moved)
    try:
        waiting = asyncio.create_task(ring.result())
        stopping = encode_credit(0, (StageProgress(0, 1), StageProgress(1, 1, draining=True)))
        calls[0].incoming.put_nowait(stopping)
        await until(lambda: ring._progress)
        assert not waiting.done()
        moved = True
        calls[0].incoming.put_nowait(stopping)
        with pytest.raises(StageNotReady, match="stage 1 is stopping"):
            await waiting
    finally:
        await ring.close()


async def test_case_21_closing_is_bounded_when_a_channel_hangs(calls):
    ring = RingPipeline(FACTS, [Channel(hangs=True)], *calls, QUIET)
    async with asyncio.timeout(5):
        await ring.close()
    with pytest.raises(StageError, match="closed"):
        await ring.result()
