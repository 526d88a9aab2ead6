"""The stage server over real gRPC on fake engines: the ring, the order, the refusals, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import grpc
import pytest

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
from shoal_stage.engine.fake import greedy_text
from shoal_stage.server.fake import StageHandle, fake_pipeline

GREEDY = SamplingParams(temperature=0.0)
DEADLINE = 10.0


def open_request(stages: Sequence[StageHandle], index: int, epoch: int, **changes: object) -> OpenRequest:
    stage = stages[index]
    fields: dict[str, object] = {
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
    return OpenRequest(**{**fields, **changes})  # type: ignore[arg-type]


class Ring:
    """A minimal router: raw stubs, one frame after the other."""

    def __init__(self, first: StageStub, last: StageStub, epoch: int) -> None:
        self.epoch = epoch
        self.numbers = count()
        self.run = first.Run()
        self.results = last.Results(ResultsRequest(epoch=epoch))

    async def send(self, body: Step | Release | Heartbeat, **changes: int) -> None:
        fields = {"epoch": self.epoch, "number": next(self.numbers), **changes}
        await self.run.write(encode_frame(Frame(fields["epoch"], fields["number"], body)))

    async def result(self) -> StepResult:
        return decode_result(await asyncio.wait_for(self.results.read(), DEADLINE))

    async def step(self, *rows: Row) -> StepResult:
        await self.send(Step(rows))
        return await self.result()


@asynccontextmanager
async def stub_of(stage: StageHandle) -> AsyncIterator[StageStub]:
    async with grpc.aio.insecure_channel(stage.address) as channel:
        yield StageStub(channel)


@asynccontextmanager
async def open_ring(stages: Sequence[StageHandle], epoch: int = 1) -> AsyncIterator[Ring]:
    async with stub_of(stages[0]) as first, stub_of(stages[-1]) as last:
        for index in reversed(range(len(stages))):
            async with stub_of(stages[index]) as stub:
                await stub.Open(encode_open(open_request(stages, index, epoch)), timeout=DEADLINE)
        yield Ring(first, last, epoch)


async def generate(ring: Ring, prompt: Sequence[int], total: int, *, seq: int = 1, blocks: int = 8) -> list[int]:
    table = tuple(range(seq * blocks, (seq + 1) * blocks))
    start = SequenceStart(GREEDY, len(prompt))
    row = Row(seq, 0, 0, tuple(prompt), len(prompt), True, slot=seq, blocks=table, start=start)
    ids = list(prompt)
    while True:
        result = await ring.step(row)
        ids += result.outcomes[0].tokens
        if len(ids) >= len(prompt) + total:
            return ids[len(prompt) :]
        row = Row(seq, 0, len(ids) - 1, (ids[-1],), 1, True, slot=seq, blocks=table)


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 3])
async def test_a_ring_of_stages_gives_the_text_of_plain_decoding(stages: int, paged: bool) -> None:
    async with fake_pipeline(stages, paged=paged) as handles, open_ring(handles) as ring:
        assert await generate(ring, [5, 6, 7], 12) == greedy_text([5, 6, 7], 12)
        await ring.send(Release((1,)))
        await ring.send(Heartbeat(77))
        assert (await ring.result()).heartbeat == 77
        assert [handle.engine.live for handle in handles] == [frozenset()] * stages


async def refusal(call: grpc.aio.StreamStreamCall) -> tuple[str, str]:
    """The class name and text with which the stage ended the stream."""
    try:
        async with asyncio.timeout(DEADLINE):
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return dict(error.trailing_metadata())[ERROR_KEY], error.details() or ""
    raise AssertionError(f"the stream ended without an error: {await call.code()}")
