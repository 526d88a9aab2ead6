"""A router of few lines for tests of stages: raw stubs, one frame after the other, no recovery.

async with fake_pipeline(2) as stages, open_ring(stages, epoch=1) as ring:
    result = await ring.step(first_row())
    text = await ring.generate([5, 6, 7], 12)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc
from grpc.aio import EOF  # type: ignore[attr-defined]
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.wire.codec import decode_result, encode_frame, encode_open
from shoal.wire.errors import ERROR_KEY
from shoal.wire.messages import (
    DType,
    Frame,
    Heartbeat,
    OpenRequest,
    Release,
    Row,
    SamplingParams,
    SequenceStart,
    Step,
    StepResult,
)
from shoal.wire.stage_pb2 import ResultsRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal_stage.server.fake import StageHandle
from shoal_stage.server.listen import SERVICE

DEADLINE = 60.0
GREEDY = SamplingParams(temperature=0.0)


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

    async def generate(self, prompt: Sequence[int], total: int, *, seq: int = 1, blocks: int = 8) -> list[int]:
        """At least `total` ids after the prompt, greedy, in the sequence's own slot and `blocks` KV blocks."""
        table = tuple(range(seq * blocks, (seq + 1) * blocks))
        start = SequenceStart(GREEDY, len(prompt))
        row = Row(seq, 0, 0, tuple(prompt), len(prompt), True, slot=seq, blocks=table, start=start)
        ids = list(prompt)
        while len(ids) < len(prompt) + total:
            ids += (await self.step(row)).outcomes[0].tokens
            row = Row(seq, 0, len(ids) - 1, (ids[-1],), 1, True, slot=seq, blocks=table)
        return ids[len(prompt) :]


def first_row(seq: int = 1, **changes: Any) -> Row:
    """The whole prompt (5, 6, 7) of a greedy sequence in a slot and two KV blocks of its own; `changes` set fields."""
    fields: dict[str, Any] = {
        "seq": seq,
        "version": 0,
        "past_len": 0,
        "tokens": (5, 6, 7),
        "known": 3,
        "sample": True,
        "slot": seq,
        "blocks": (2 * seq, 2 * seq + 1),
        "start": SequenceStart(GREEDY, 3),
    }
    return Row(**{**fields, **changes})


@asynccontextmanager
async def stub_of(stage: StageHandle) -> AsyncIterator[Any]:
    """A stub on a connection of its own."""
    async with grpc.aio.insecure_channel(stage.address) as channel:
        yield StageStub(channel)  # type: ignore[no-untyped-call]


async def health_of(stage: StageHandle) -> str:
    """What grpc.health.v1 says of the stage: SERVING, NOT_SERVING."""
    async with grpc.aio.insecure_channel(stage.address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


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
