"""The stage server over real gRPC on fake engines: the ring, the order, the refusals."""

from __future__ import annotations

from itertools import count

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.wire import stage_pb2 as pb
from shoal.wire.messages import (
    Heartbeat,
    Release,
    Row,
    SequenceStart,
    StageState,
    Step,
)
from shoal.wire.stage_pb2 import ResultsRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal_stage.engine.fake import greedy_text
from shoal_stage.server.fake import fake_pipeline
from shoal_stage.server.fake_router import (
    GREEDY,
    FakeRouter,
    first_row,
    health_of,
    open_refusal,
    open_request,
    open_ring,
    refusal,
    stub_of,
)
from shoal_stage.server.listen import SERVICE
from shoaltest.waiting import until_elsewhere


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 3])
async def test_a_ring_of_stages_gives_the_text_of_plain_decoding(stages: int, paged: bool) -> None:
    async with fake_pipeline(stages, paged=paged) as handles, open_ring(handles) as ring:
        assert await ring.generate([5, 6, 7], 12) == greedy_text([5, 6, 7], 12)
        await ring.send(Release((1,)))
        await ring.send(Heartbeat(77))
        assert (await ring.result()).heartbeat == 77
        assert [handle.engine.live for handle in handles] == [frozenset()] * stages


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
            assert await ring.generate([5, 6, 7], 2) == greedy_text([5, 6, 7], 2)
            assert (await open_refusal(handles[0], open_request(handles, 0, 4)))[0] == "StaleEpoch"
            assert (await ring.step(first_row(2))).outcomes


async def test_case_23_frames_of_an_epoch_that_is_over_are_refused() -> None:
    async with fake_pipeline(2) as handles, open_ring(handles, epoch=1) as old:
        await old.step(first_row())
        async with open_ring(handles, epoch=2) as new:
            assert (await refusal(old.run))[0] == "StaleEpoch"
            assert (await refusal(old.results))[0] == "StaleEpoch"
            await until_elsewhere(lambda: not handles[0].engine.live and not handles[1].engine.live)
            late = FakeRouter(new_stub := StageStub(grpc.aio.insecure_channel(handles[0].address)), new_stub, 1)
            await late.send(Step((first_row(2),)))
            name, words = await refusal(late.run)
            assert name == "StaleEpoch"
            assert "epoch 1" in words
            assert await new.generate([5, 6, 7], 3) == greedy_text([5, 6, 7], 3)


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
        intruder = FakeRouter(stub, stub, 1)
        await intruder.send(Step((first_row(2),)), number=1)
        assert (await refusal(intruder.run))[0] == "WrongPlace"
        assert (await refusal(intruder.results))[0] == "WrongPlace"
        assert (await ring.step(first_row(2))).outcomes


async def test_results_come_from_the_last_stage_only() -> None:
    async with fake_pipeline(2) as handles, open_ring(handles), stub_of(handles[0]) as stub:
        assert (await refusal(stub.Results(ResultsRequest(epoch=1))))[0] == "WrongPlace"
