"""The stage server over real gRPC on fake engines: the ring, the order, the refusals, the end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ResourceError, UsageError
from shoal.wire import stage_pb2 as pb
from shoal.wire.codec import decode_description, decode_result, encode_frame, encode_open
from shoal.wire.errors import ERROR_KEY, StageExhausted
from shoal.wire.messages import (
    DType,
    Frame,
    Heartbeat,
    OpenRequest,
    Release,
    Row,
    SamplingParams,
    SequenceStart,
    StageState,
    Step,
    StepResult,
)
from shoal.wire.stage_pb2 import DescribeRequest, ResultsRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal_stage.engine.fake import FakeEngine, fake_manifest, greedy_text
from shoal_stage.server.fake import StageHandle, fake_pipeline, start_stage
from shoal_stage.server.listen import SERVICE, parse_address
from shoal_stage.server.session import WINDOW
from shoal_stage.server.stage import Patience

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


def first_row(seq: int = 1, **changes: object) -> Row:
    fields: dict[str, object] = {
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
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


async def health_of(stage: StageHandle) -> str:
    async with grpc.aio.insecure_channel(stage.address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=DEADLINE
        )
        return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on the compute thread
            await asyncio.sleep(0.005)


async def open_refusal(stage: StageHandle, request: OpenRequest) -> tuple[str, str]:
    async with stub_of(stage) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Open(encode_open(request), timeout=DEADLINE)
    return dict(caught.value.trailing_metadata())[ERROR_KEY], caught.value.details() or ""


async def test_batched_sequences_have_their_solo_texts() -> None:
    async with fake_pipeline(2) as handles, open_ring(handles) as ring:
        prompts = {seq: [seq, seq + 1, seq + 2] for seq in (1, 2, 3)}
        texts = {seq: list(prompt) for seq, prompt in prompts.items()}
        rows = [
            first_row(seq, tokens=tuple(prompt), blocks=(seq, seq + 4), start=SequenceStart(GREEDY, 3))
            for seq, prompt in prompts.items()
        ]
        for _ in range(8):
            for outcome in (await ring.step(*rows)).outcomes:
                texts[outcome.seq] += outcome.tokens
            rows = [
                Row(seq, 0, len(text) - 1, (text[-1],), 1, True, blocks=(seq, seq + 4))
                for seq, text in reversed(texts.items())
            ]
        assert texts == {seq: [*prompt, *greedy_text(prompt, 8)] for seq, prompt in prompts.items()}


async def test_rejected_drafts_are_overwritten_on_every_stage() -> None:
    expected = greedy_text([5, 6, 7], 10)
    async with fake_pipeline(3) as handles, open_ring(handles) as ring:
        ids = [5, 6, 7]
        row = first_row()
        while len(ids) < 13:
            outcome = (await ring.step(row)).outcomes[0]
            assert outcome.base == len(ids)
            ids += outcome.tokens
            done = len(ids) - 3
            drafts = (*expected[done : done + 1], 255, 255)
            row = Row(1, 0, len(ids) - 1, (ids[-1], *drafts), 1, True, blocks=(2, 3))
        assert ids[3:13] == expected


async def test_every_stage_adds_its_timing() -> None:
    async with fake_pipeline(3) as handles, open_ring(handles) as ring:
        timings = (await ring.step(first_row())).timings
        assert [timing.stage for timing in timings] == [0, 1, 2]
        assert all(timing.compute_us > 0 for timing in timings)


async def test_open_refuses_another_model_place_or_epoch() -> None:
    async with fake_pipeline(2) as handles:
        for changes, name in (
            ({"model_digest": "e" * 64}, "DigestMismatch"),
            ({"block_end": 6}, "WrongPlace"),
            ({"max_frame_bytes": 1 << 40}, "WrongPlace"),
        ):
            found, words = await open_refusal(handles[0], open_request(handles, 0, 3, **changes))
            assert (found, bool(words)) == (name, True)
        async with open_ring(handles, epoch=4) as ring:
            assert await generate(ring, [5, 6, 7], 2) == greedy_text([5, 6, 7], 2)
            assert (await open_refusal(handles[0], open_request(handles, 0, 4)))[0] == "StaleEpoch"
            assert (await ring.step(first_row(2))).outcomes


async def test_case_23_frames_of_an_epoch_that_is_over_are_refused() -> None:
    async with fake_pipeline(2) as handles, open_ring(handles, epoch=1) as old:
        await old.step(first_row())
        async with open_ring(handles, epoch=2) as new:
            assert (await refusal(old.run))[0] == "StaleEpoch"
            assert (await refusal(old.results))[0] == "StaleEpoch"
            await until(lambda: not handles[0].engine.live and not handles[1].engine.live)
            late = Ring(new_stub := StageStub(grpc.aio.insecure_channel(handles[0].address)), new_stub, 1)
            await late.send(Step((first_row(2),)))
            name, words = await refusal(late.run)
            assert name == "StaleEpoch"
            assert "epoch 1" in words
            assert await generate(new, [5, 6, 7], 3) == greedy_text([5, 6, 7], 3)


@pytest.mark.parametrize(
    ("body", "changes", "name"),
    [
        (Step((first_row(2),)), {"number": 7}, "InvalidFrame"),
        (Step((first_row(2, tokens=(999,), known=1),)), {}, "InvalidFrame"),
        (Step((first_row(2),), np.zeros((3, 8), np.float32)), {}, "InvalidFrame"),
        (Step((first_row(2, start=None),)), {}, "InvalidFrame"),
        (Step((first_row(1, past_len=9, start=None),)), {}, "InvalidFrame"),
        (Heartbeat(1), {"epoch": 9}, "WrongPlace"),
    ],
)
async def test_a_bad_frame_ends_its_stream_and_disturbs_nothing_else(
    body: Step | Heartbeat, changes: dict[str, int], name: str
) -> None:
    async with fake_pipeline(2) as handles, open_ring(handles) as ring, stub_of(handles[0]) as stub:
        result = await ring.step(first_row())
        ids = [5, 6, 7, *result.outcomes[0].tokens]
        await ring.send(body, **changes)
        assert (await refusal(ring.run))[0] == name
        ring.run, ring.numbers = stub.Run(), count(1)
        for _ in range(3):
            ids += (await ring.step(Row(1, 0, len(ids) - 1, (ids[-1],), 1, True, blocks=(2, 3)))).outcomes[0].tokens
        assert ids[3:] == greedy_text([5, 6, 7], 4)


@given(data=st.data())
@settings(max_examples=25, deadline=None)
async def test_fuzzed_frames_are_refused_with_a_reason(data: st.DataObject) -> None:
    numbers = st.integers(0, 2**32 - 1) | st.integers(0, 5)
    message = pb.Frame(epoch=data.draw(st.sampled_from([0, 1, 2**63])), number=data.draw(st.integers(0, 1)))
    for _ in range(data.draw(st.integers(0, 2))):
        message.step.rows.add(
            seq=data.draw(numbers),
            past_len=data.draw(numbers),
            tokens=data.draw(st.lists(numbers, max_size=4)),
            known=data.draw(numbers),
            sample=data.draw(st.booleans()),
            slot=data.draw(numbers),
            blocks=data.draw(st.lists(numbers, max_size=4)),
        )
    message.step.hidden.tokens = data.draw(numbers)
    message.step.hidden.width = data.draw(numbers)
    message.step.hidden.data = data.draw(st.binary(max_size=64))
    async with fake_pipeline(1) as handles, open_ring(handles) as ring:
        await ring.run.write(message)
        name, words = await refusal(ring.run)
        assert name in ("InvalidFrame", "StaleEpoch", "WrongPlace", "StageExhausted")
        assert words
        assert handles[0].stage.describe().state is StageState.READY
        assert handles[0].engine.live == frozenset()


async def test_bytes_that_are_no_frame_are_refused() -> None:
    async with fake_pipeline(1) as handles, grpc.aio.insecure_channel(handles[0].address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Run")()
        await call.write(b"\xff\xff\xff")
        assert (await refusal(call))[0] == "InvalidFrame"
        assert await health_of(handles[0]) == "SERVING"


async def test_an_epoch_has_one_upstream_and_one_reader() -> None:
    async with fake_pipeline(1) as handles, open_ring(handles) as ring, stub_of(handles[0]) as stub:
        await ring.step(first_row())
        intruder = Ring(stub, stub, 1)
        await intruder.send(Step((first_row(2),)), number=1)
        assert (await refusal(intruder.run))[0] == "WrongPlace"
        assert (await refusal(intruder.results))[0] == "WrongPlace"
        assert (await ring.step(first_row(2))).outcomes


async def test_results_come_from_the_last_stage_only() -> None:
    async with fake_pipeline(2) as handles, open_ring(handles), stub_of(handles[0]) as stub:
        assert (await refusal(stub.Results(ResultsRequest(epoch=1))))[0] == "WrongPlace"


@asynccontextmanager
async def waiting_pipeline(gate: threading.Event, patience: Patience | None = None) -> AsyncIterator[list[StageHandle]]:
    """One stage whose steps wait until the gate is set, at the latest when the test ends."""

    def on_run(stage: int, rows: Sequence[Row]) -> None:
        gate.wait(DEADLINE)

    async with fake_pipeline(1, on_run=on_run, patience=patience) as handles:
        try:
            yield handles
        finally:
            gate.set()


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
        await until(lambda: handles[0].stage.session(1).inside == 3)
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
        credits, sent = 0, 0
        while sent < 20 * WINDOW:
            if credits == 0:
                read = asyncio.ensure_future(run.read())
                await asyncio.wait({read}, timeout=0.3)
                if not read.done():
                    read.cancel()
                    break
                credits += read.result().frames
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


async def test_health_follows_the_state_and_describe_answers_while_loading() -> None:
    gate = threading.Event()

    def load() -> FakeEngine:
        assert gate.wait(DEADLINE)
        return FakeEngine(0, 6)

    manifest = fake_manifest()
    async with start_stage(load, manifest=manifest, blocks=(0, 6), wait_ready=False) as stage:
        try:
            assert await health_of(stage) == "NOT_SERVING"
            async with stub_of(stage) as stub:
                said = decode_description(await stub.Describe(DescribeRequest(), timeout=DEADLINE))
            assert (said.state, said.capacity, said.model_digest) == (StageState.LOADING, None, manifest.digest)
            request = open_request([stage], 0, 1)
            name, words = await open_refusal(stage, request)
            assert (name, "loading" in words) == ("StageNotReady", True)
        finally:
            gate.set()
        await asyncio.wait_for(stage.stage.settled.wait(), DEADLINE)
        assert await health_of(stage) == "SERVING"
        async with stub_of(stage) as stub:
            assert (await stub.Open(encode_open(request), timeout=DEADLINE)).credits == WINDOW
            said = decode_description(await stub.Describe(DescribeRequest(), timeout=DEADLINE))
        assert said.capacity == stage.engine.capacity


async def test_an_engine_that_cannot_load_fails_the_stage_with_its_reason() -> None:
    def load() -> FakeEngine:
        raise ResourceError("no device GPU")

    async with start_stage(load, manifest=fake_manifest(), blocks=(0, 6)) as stage:
        assert await health_of(stage) == "NOT_SERVING"
        assert stage.stage.failed.is_set()
        assert (stage.stage.describe().state, stage.stage.describe().detail) == (StageState.FAILED, "no device GPU")
        assert await open_refusal(stage, open_request([stage], 0, 1)) == ("StageFailed", "stage failed: no device GPU")


@pytest.mark.parametrize("killer", [RuntimeError("out of device memory"), SystemExit(), KeyboardInterrupt()])
async def test_case_p1_a_stage_that_loses_its_compute_thread_says_so(killer: BaseException) -> None:
    def on_run(stage: int, rows: Sequence[Row]) -> None:
        if stage == 1:
            raise killer

    async with fake_pipeline(2, on_run=on_run) as handles, open_ring(handles) as ring:
        await ring.send(Step((first_row(),)))
        name, words = await refusal(ring.results)
        assert name == "StageFailed"
        assert type(killer).__name__ in words
        assert (await refusal(ring.run))[0] == "StageFailed"
        assert handles[1].stage.failed.is_set()
        assert await health_of(handles[1]) == "NOT_SERVING"
        assert await health_of(handles[0]) == "SERVING"


async def test_case_p1_a_step_that_hangs_fails_the_stage() -> None:
    gate = threading.Event()
    patience = Patience(step=0.2, drain=0.1)
    async with waiting_pipeline(gate, patience) as handles, open_ring(handles) as ring:
        await ring.send(Step((first_row(),)))
        name, words = await refusal(ring.results)
        assert (name, "hangs" in words) == ("StageFailed", True)
        gate.set()


async def test_an_engine_that_refuses_a_row_ends_the_epoch_but_not_the_stage() -> None:
    def on_run(stage: int, rows: Sequence[Row]) -> None:
        if rows[0].seq == 13:
            raise StageExhausted("no page left")

    async with fake_pipeline(2, on_run=on_run) as handles, open_ring(handles) as ring:
        await ring.send(Step((first_row(13, blocks=(1,)),)))
        assert (await refusal(ring.run))[0] == "StageExhausted"
        async with open_ring(handles, epoch=2) as again:
            assert await generate(again, [5, 6, 7], 3) == greedy_text([5, 6, 7], 3)


async def test_a_lost_stage_is_reported_to_the_upstream() -> None:
    async with fake_pipeline(3) as handles, open_ring(handles) as ring:
        await ring.step(first_row())
        await handles[1].kill()
        name, words = await refusal(ring.run)
        assert name == "StageUnreachable"
        assert handles[1].address in words


async def test_case_12_an_epoch_whose_router_vanished_is_freed_and_the_stages_stay() -> None:
    patience = Patience(orphan=0.05)
    async with fake_pipeline(2, patience=patience) as handles:
        async with open_ring(handles) as ring:
            await ring.step(first_row())
            assert handles[1].engine.live == {1}
        await until(lambda: not handles[0].engine.live and not handles[1].engine.live)
        async with open_ring(handles, epoch=2) as ring:
            assert await generate(ring, [5, 6, 7], 3) == greedy_text([5, 6, 7], 3)


async def test_case_18_a_stage_that_stops_finishes_the_step_in_hand() -> None:
    entered, gate = threading.Event(), threading.Event()

    def on_run(stage: int, rows: Sequence[Row]) -> None:
        entered.set()
        assert gate.wait(DEADLINE)

    async with fake_pipeline(1, on_run=on_run) as handles, open_ring(handles) as ring:
        await ring.send(Step((first_row(),)))
        await ring.send(Step((first_row(2),)))
        await until(entered.is_set)
        stopping = asyncio.ensure_future(handles[0].server.stop())
        await until(lambda: handles[0].stage.describe().state is StageState.DRAINING)
        assert await health_of(handles[0]) == "NOT_SERVING"
        gate.set()
        assert [outcome.seq for outcome in (await ring.result()).outcomes] == [1]
        assert (await refusal(ring.results))[0] == "StageNotReady"
        assert await stopping is True
        assert handles[0].engine.closed
        assert handles[0].engine.steps == 1


async def test_a_next_hop_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_stage.server.onward.CONNECT_SECONDS", 0.3)
    async with fake_pipeline(2) as handles:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            where = f"127.0.0.1:{silent.getsockname()[1]}"
            name, words = await open_refusal(handles[0], open_request(handles, 0, 1, next_address=where))
        assert (name, where in words) == ("StageUnreachable", True)
        async with open_ring(handles, epoch=2) as ring:
            assert (await ring.step(first_row())).outcomes


async def test_a_next_stage_that_still_loads_is_named() -> None:
    gate, manifest = threading.Event(), fake_manifest()

    def load() -> FakeEngine:
        assert gate.wait(DEADLINE)
        return FakeEngine(3, 6)

    async with (
        start_stage(lambda: FakeEngine(0, 3), manifest=manifest, blocks=(0, 3)) as first,
        start_stage(load, manifest=manifest, blocks=(3, 6), wait_ready=False) as last,
    ):
        name, words = await open_refusal(first, open_request([first, last], 0, 1))
        gate.set()
        assert (name, "is loading" in words) == ("StageNotReady", True)


async def test_case_p3_neighbours_of_other_versions_or_models_refuse_each_other() -> None:
    manifest, other = fake_manifest(), fake_manifest(name="another")
    first = start_stage(lambda: FakeEngine(0, 3), manifest=manifest, blocks=(0, 3))
    async with (
        first as stage,
        start_stage(lambda: FakeEngine(3, 6), manifest=manifest, blocks=(3, 6), versions={"shoal": "9"}) as newer,
        start_stage(lambda: FakeEngine(3, 6), manifest=other, blocks=(3, 6)) as foreign,
        start_stage(lambda: FakeEngine(2, 6), manifest=manifest, blocks=(2, 6)) as gap,
    ):
        for epoch, (following, name, words) in enumerate(
            [(newer, "WrongPlace", "shoal 9"), (foreign, "DigestMismatch", "model"), (gap, "WrongPlace", "block 2")], 1
        ):
            found, reason = await open_refusal(stage, open_request([stage, following], 0, epoch))
            assert found == name
            assert words in reason


async def test_a_port_in_use_is_one_clear_line() -> None:
    async with fake_pipeline(1) as handles:
        with pytest.raises(ResourceError, match="in use"):
            async with start_stage(
                lambda: FakeEngine(0, 6), manifest=fake_manifest(), blocks=(0, 6), listen=handles[0].address
            ):
                pass


@pytest.mark.parametrize("listen", ["", "localhost", ":80", "1.2.3.4:x", "1.2.3.4:99999"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(listen)
