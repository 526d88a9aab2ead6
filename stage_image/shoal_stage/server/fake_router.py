"""A router of few lines for tests of stages: raw stubs, one frame after the other, no recovery.

async with fake_pipeline(2) as stages, open_ring(stages, epoch=1) as ring:
    result = await ring.step(row)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc
from grpc.aio import EOF  # type: ignore[attr-defined]

from shoal.wire.codec import decode_result, encode_frame, encode_open
from shoal.wire.errors import ERROR_KEY
from shoal.wire.messages import DType, Frame, Heartbeat, OpenRequest, Release, Row, Step, StepResult
from shoal.wire.stage_pb2 import ResultsRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal_stage.server.fake import StageHandle

DEADLINE = 60.0


class FakeRouter:
    """Invariant: frames are numbered from 0 in the order of the calls, unless a test says otherwise."""

    def __init__(self, first: Any, last: Any, epoch: int) -> None:
        self.epoch = epoch
        self.numbers = count()
        self.run = first.Run()
        self.results = last.Results(ResultsRequest(epoch=epoch))

    async def send(self, body: Step | Release | Heartbeat, **changes: int) -> None:
        """Send one frame; `changes` may set another epoch or number."""
        fields = {"epoch": self.epoch, "number": next(self.numbers), **changes}
        await self.run.write(encode_frame(Frame(fields["epoch"], fields["number"], body)))

    async def result(self) -> StepResult:
        """The next result."""
        return decode_result(await asyncio.wait_for(self.results.read(), DEADLINE))

    async def step(self, *rows: Row) -> StepResult:
        """Send one step and wait for its result."""
        await self.send(Step(rows))
        return await self.result()


@asynccontextmanager
async def stub_of(stage: StageHandle) -> AsyncIterator[Any]:
    """A stub on a connection of its own."""
    async with grpc.aio.insecure_channel(stage.address) as channel:
        yield StageStub(channel)  # type: ignore[no-untyped-call]


def open_request(stages: Sequence[StageHandle], index: int, epoch: int, **changes: Any) -> OpenRequest:
    """The Open of stage `index`; `changes` set other fields."""
    stage = stages[index]
    fields: dict[str, Any] = {
        "epoch": epoch,
        "stage_index": index,
        "stages": len(stages),
        "model_digest": stage.manifest.digest,
        "block_start": stage.blocks[0],
        "block_end": stage.blocks[1],
        "next_address": stages[index + 1].address if index + 1 < len(stages) else "",
        "hidden_dtype": DType.F32,
        "max_frame_bytes": 1 << 20,
    }
    return OpenRequest(**{**fields, **changes})


@asynccontextmanager
async def open_ring(stages: Sequence[StageHandle], epoch: int = 1) -> AsyncIterator[FakeRouter]:
    """Open every stage, the last one first, and connect both ends."""
    async with stub_of(stages[0]) as first, stub_of(stages[-1]) as last:
        for index in reversed(range(len(stages))):
            async with stub_of(stages[index]) as stub:
                await stub.Open(encode_open(open_request(stages, index, epoch)), timeout=DEADLINE)
        yield FakeRouter(first, last, epoch)


async def refusal(call: Any) -> tuple[str, str]:
    """The class name and the text with which the stage ends a stream."""
    try:
        async with asyncio.timeout(DEADLINE):
            while await call.read() is not EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return _reason(error)
    raise AssertionError(f"the stream ended without an error: {await call.code()}")


async def open_refusal(stage: StageHandle, request: OpenRequest) -> tuple[str, str]:
    """The class name and the text with which the stage refuses an Open."""
    async with stub_of(stage) as stub:
        try:
            await stub.Open(encode_open(request), timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            return _reason(error)
    raise AssertionError("the stage took the place")


def _reason(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    trailing: Any = error.trailing_metadata() or ()
    return dict(trailing).get(ERROR_KEY, ""), error.details() or ""
