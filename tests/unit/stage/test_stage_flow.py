"""Flow control over real gRPC: credits bound what is inside a stage, and nothing is held for an epoch that is over."""

from __future__ import annotations

import asyncio
import threading

from shoal.wire.codec import encode_frame, encode_open
from shoal.wire.messages import Frame, Heartbeat, Release, Step
from shoal_stage.server.fake import fake_pipeline, waiting_pipeline
from shoal_stage.server.fake_router import DEADLINE, first_row, open_request, open_ring, refusal, stub_of
from shoal_stage.server.session import WINDOW
from shoaltest.waiting import until_elsewhere


async def test_credits_bound_the_frames_in_flight() -> None:
    gate = threading.Event()
    async with waiting_pipeline(gate) as handles, open_ring(handles) as ring:
        granted = await asyncio.wait_for(ring.run.read(), DEADLINE)
        assert granted.frames == WINDOW
        await ring.send(Step((first_row(),)))
        for _ in range(WINDOW):
            await ring.send(Heartbeat(1))
        name, words = await refusal(ring.run)
        assert (name, "without credit" in words) == ("InvalidFrame", True)
        gate.set()


async def test_an_epoch_that_ends_before_its_release_was_run_leaves_nothing() -> None:
    """The release is accepted, but the epoch is over when the compute thread gets to it."""
    gate = threading.Event()
    async with waiting_pipeline(gate) as handles, open_ring(handles) as ring:
        await ring.send(Step((first_row(),)))
        await ring.send(Release((1,)))
        await ring.send(Step((first_row(2),)))
        await until_elsewhere(lambda: handles[0].stage.session(1).inside == 3)
        async with open_ring(handles, epoch=2) as again:
            gate.set()
            await again.send(Heartbeat(5))
            assert (await again.result()).heartbeat == 5
            assert handles[0].engine.live == frozenset()
            assert handles[0].engine.steps == 1


async def test_a_reader_that_is_slow_stops_the_flow_instead_of_filling_memory() -> None:
    """Nobody reads the results: the stage grants no more than the window."""
    async with fake_pipeline(2) as handles, stub_of(handles[0]) as stub:
        for index in (1, 0):
            async with stub_of(handles[index]) as each:
                await each.Open(encode_open(open_request(handles, index, 1)), timeout=DEADLINE)
        run = stub.Run()

        async def granted():
            """Pulses come all the while, and grant nothing."""
            while not (frames := (await run.read()).frames):
                pass
            return frames

        credits, sent = 0, 0
        while sent < 20 * WINDOW:
            if credits == 0:
                try:
                    credits += await asyncio.wait_for(granted(), 0.6)
                except TimeoutError:
                    break
            credits -= 1
            await run.write(encode_frame(Frame(1, sent, Heartbeat(sent))))
            sent += 1
        assert WINDOW <= sent <= 3 * WINDOW


async def test_credits_come_back_for_a_long_run() -> None:
    async with fake_pipeline(2) as handles, open_ring(handles) as ring:
        credits = 0
        for nonce in range(5 * WINDOW):
            if credits == 0:
                credits += (await asyncio.wait_for(ring.run.read(), DEADLINE)).frames
            credits -= 1
            await ring.send(Heartbeat(nonce))
            assert (await ring.result()).heartbeat == nonce
