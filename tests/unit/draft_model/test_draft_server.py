"""The draft server over real gRPC, and the router's client of it: reconnecting, refusing, never waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.errors import ResourceError
from shoal.vocabulary import Vocabulary
from shoal.wire.drafts import DraftText, ProposeReply, ProposeRequest, decode_reply, encode_propose
from shoal.wire.errors import StageExhausted, StageNotReady, from_rpc_error
from shoal.wire.messages import Row
from shoal.wire.stage_pb2_grpc import DraftStub
from shoal_router.draft.model import DraftTimes, ModelDrafter
from shoal_router.schedule.drafting import Draft
from shoal_stage.draft.fake import VOCABULARY, DraftHandle, start_draft
from shoal_stage.engine.fake import FakeEngine, greedy_text
from shoal_stage.server.stage import Patience
from shoaltest.waiting import until_elsewhere

PROMPT = [5, 6, 7]
QUICK = DraftTimes(connect=5.0, first_pause=0.01, longest_pause=0.05)


@asynccontextmanager
async def drafter_of(address: str, vocabulary: Vocabulary = VOCABULARY) -> AsyncIterator[ModelDrafter]:
    drafter = ModelDrafter(address, vocabulary, QUICK)
    await drafter.start()
    try:
        yield drafter
    finally:
        await drafter.stop()


async def drafts(drafter: ModelDrafter, seq: int, suffix: list[int], count: int) -> Draft:
    """Ask until as many are there."""
    found: list[Draft] = []

    def enough() -> bool:
        draft = drafter.propose(seq, suffix, count)
        if draft is not None and len(draft.tokens) == count:
            found.append(draft)
        return bool(found)

    await until_elsewhere(enough)
    return found[0]


async def test_drafts_run_ahead_of_committed_and_of_sent_text() -> None:
    async with start_draft() as draft, drafter_of(draft.address) as drafter:
        drafter.begin(1, PROMPT, "")
        drafter.begin(2, [9, 9], "")
        expected = greedy_text(PROMPT, 8)
        proposed = await drafts(drafter, 1, [], 2)
        assert (list(proposed.tokens), proposed.source) == (expected[:2], "model")
        assert all(0 < each <= 1 for each in proposed.confidence)
        ahead = await drafts(drafter, 1, expected[:1], 1)
        assert list(ahead.tokens) == expected[1:2]
        drafter.commit(1, expected[:2])
        assert list((await drafts(drafter, 1, [], 1)).tokens) == expected[2:3]
        drafter.commit(1, [77])
        assert list((await drafts(drafter, 1, [], 1)).tokens) == greedy_text([*PROMPT, *expected[:2], 77], 1)
        assert list((await drafts(drafter, 2, [4], 1)).tokens) == greedy_text([9, 9, 4], 1)
        drafter.end(1)
        drafter.end(2)
        await until_elsewhere(lambda: not draft.engine.live)


async def test_a_text_whose_drafts_nobody_asks_for_is_left_alone_until_somebody_does() -> None:
    fed: list[int] = []

    def feed(rows: Sequence[Row]) -> None:
        for row in rows:
            fed.extend(row.tokens)

    async with start_draft(on_run=feed) as draft, drafter_of(draft.address) as drafter:
        drafter.begin(1, PROMPT, "")
        drafter.begin(2, [9, 9], "")
        await drafts(drafter, 1, [], 1)
        for told in (240, 241):
            drafter.commit(1, [told])
        await until_elsewhere(lambda: 241 in fed)
        drafter.commit(1, [242])
        # Behind what is told of the other text nothing of this one can still be on its way.
        await drafts(drafter, 2, [4], 1)
        assert 242 not in fed
        assert drafter.wait(1) == inf
        await until_elsewhere(lambda: 242 in fed)
        assert list((await drafts(drafter, 1, [], 1)).tokens) == greedy_text([*PROMPT, 240, 241, 242], 1)


async def test_case_p8_a_lost_draft_process_is_said_once_costs_no_answer_and_is_found_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with start_draft() as first:
        address = first.address
        async with drafter_of(address) as drafter:
            drafter.begin(1, PROMPT, "")
            await drafts(drafter, 1, [], 1)
            await first.server.stop()
            await until_elsewhere(lambda: not drafter.connected.is_set())
            assert drafter.propose(1, [], 4) is None
            drafter.commit(1, [40, 41])
            drafter.begin(2, [8], "")
            drafter.end(2)
            await until_elsewhere(lambda: "no drafts from" in caplog.text)
            async with start_draft(listen=address):
                for expected in greedy_text([*PROMPT, 40, 41], 6):
                    assert list((await drafts(drafter, 1, [], 1)).tokens) == [expected], "aligned, and stays so"
                    drafter.commit(1, [expected])
    unreachable = [record for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert len(unreachable) <= 1


async def test_another_vocabulary_is_refused_for_good_and_by_name(caplog: pytest.LogCaptureFixture) -> None:
    other = Vocabulary("target-8b", 300, "e" * 64)
    async with start_draft() as draft, drafter_of(draft.address, other) as drafter:
        drafter.begin(1, PROMPT, "")
        await until_elsewhere(lambda: "vocabulary" in caplog.text)
        assert "draft model fake has a vocabulary of 256 tokens, target-8b one of 300" in caplog.text
        assert drafter.propose(1, [], 4) is None
        assert not draft.engine.live


async def test_a_slow_draft_process_never_makes_the_router_wait() -> None:
    gate = threading.Event()
    async with start_draft(on_run=lambda rows: gate.wait(10)) as draft, drafter_of(draft.address) as drafter:
        try:
            await asyncio.wait_for(drafter.connected.wait(), 10)
            drafter.begin(1, PROMPT, "")
            await until_elsewhere(lambda: draft.server._thread.busy_seconds() > 0)
            assert drafter.propose(1, [], 4) is None
            drafter.commit(1, [50])
        finally:
            gate.set()
        assert list((await drafts(drafter, 1, [], 1)).tokens) == greedy_text([*PROMPT, 50], 1)


async def health_of(address: str) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service="shoal.stage.v1.Draft"), timeout=10)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


@asynccontextmanager
async def stream_to(handle: DraftHandle) -> AsyncIterator[Callable[[], Awaitable[ProposeReply]]]:
    async with grpc.aio.insecure_channel(handle.address) as channel:
        stream = DraftStub(channel).Propose()

        async def read() -> ProposeReply:
            async with asyncio.timeout(10):
                try:
                    return decode_reply(await stream.read())
                except grpc.aio.AioRpcError as error:
                    raise from_rpc_error(error, handle.address) from None

        read.stream = stream  # type: ignore[attr-defined]
        yield read


async def test_health_follows_the_state_and_who_comes_too_early_is_told() -> None:
    gate = threading.Event()

    def load() -> FakeEngine:
        assert gate.wait(10)
        return FakeEngine(0, 6)

    async with start_draft(load=load, wait_ready=False) as draft:
        try:
            assert await health_of(draft.address) == "NOT_SERVING"
            async with stream_to(draft) as read:
                with pytest.raises(StageNotReady, match="loading"):
                    await read()
        finally:
            gate.set()
        await draft.server.settled.wait()
        assert await health_of(draft.address) == "SERVING"
        assert draft.server.ready() is not None


async def test_an_engine_that_cannot_load_ends_the_process_with_its_reason() -> None:
    def load() -> FakeEngine:
        raise ResourceError("no such device")

    async with start_draft(load=load) as draft:
        assert str(draft.server.failure) == "no such device"
        assert draft.server.ready() is None
        assert await health_of(draft.address) == "NOT_SERVING"


async def test_case_71_a_draft_engine_without_memory_ends_its_process_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def run_out(rows: object) -> None:
        raise StageExhausted("no memory for the draft's KV")

    async with start_draft(on_run=run_out) as draft, drafter_of(draft.address) as drafter:
        drafter.begin(1, PROMPT, "")
        await asyncio.wait_for(draft.server.failed.wait(), 10)
        assert str(draft.server.failure) == "no memory for the draft's KV"
        await until_elsewhere(lambda: not drafter.connected.is_set())
        assert drafter.propose(1, [], 4) is None
        drafter.commit(1, [3])
        drafter.end(1)
        await until_elsewhere(lambda: "no memory for the draft's KV" in caplog.text)


async def test_a_step_that_hangs_ends_the_process_and_its_streams() -> None:
    gate = threading.Event()
    patience = Patience(step=0.1, drain=0.1)
    async with start_draft(on_run=lambda rows: gate.wait(10), patience=patience) as draft:
        try:
            async with drafter_of(draft.address) as drafter:
                drafter.begin(1, PROMPT, "")
                await asyncio.wait_for(draft.server.failed.wait(), 10)
                assert "hangs" in str(draft.server.failure)
                await until_elsewhere(lambda: not drafter.connected.is_set())
                assert not await draft.server.stop()
        finally:
            gate.set()


async def test_a_stream_that_makes_no_sense_ends_alone() -> None:
    async with start_draft() as draft, drafter_of(draft.address) as drafter:
        drafter.begin(1, PROMPT, "")
        await drafts(drafter, 1, [], 1)
        async with stream_to(draft) as read:
            assert (await read()).model is not None
            gap = DraftText(1, 0, 9, (1,), 9, 4, 0.0)
            await read.stream.write(encode_propose(ProposeRequest((gap,))))  # type: ignore[attr-defined]
            with pytest.raises(Exception, match="text from 9 on"):
                await read()
        drafter.commit(1, [60])
        assert list((await drafts(drafter, 1, [], 1)).tokens) == greedy_text([*PROMPT, 60], 1)


async def test_a_router_that_is_gone_takes_its_texts_with_it() -> None:
    async with start_draft() as draft:
        async with drafter_of(draft.address) as drafter:
            drafter.begin(1, PROMPT, "")
            await drafts(drafter, 1, [], 1)
        await until_elsewhere(lambda: not draft.engine.live)
