"""A stage's life over real gRPC: loading, health, lost threads and neighbours, stopping."""

from __future__ import annotations

import asyncio
import importlib.metadata
import socket
import threading
from collections.abc import Sequence

import pytest

from shoal import __version__
from shoal.errors import ResourceError, UsageError
from shoal.wire.codec import decode_description, decode_progress, encode_open
from shoal.wire.errors import StageExhausted
from shoal.wire.messages import Heartbeat, Release, Row, StageProgress, StageState, Step
from shoal.wire.stage_pb2 import DescribeRequest
from shoal_stage.engine.fake import FakeEngine, fake_manifest, greedy_text
from shoal_stage.server.fake import fake_pipeline, start_stage, waiting_pipeline
from shoal_stage.server.fake_router import (
    DEADLINE,
    first_row,
    health_of,
    open_refusal,
    open_request,
    open_ring,
    refusal,
    stub_of,
)
from shoal_stage.server.listen import parse_address
from shoal_stage.server.stage import Patience
from shoaltest.waiting import until_elsewhere


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
            assert (await stub.Open(encode_open(request), timeout=DEADLINE)).epoch == request.epoch
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
            assert await again.generate([5, 6, 7], 3) == greedy_text([5, 6, 7], 3)


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
        await until_elsewhere(lambda: not handles[0].engine.live and not handles[1].engine.live)
        async with open_ring(handles, epoch=2) as ring:
            assert await ring.generate([5, 6, 7], 3) == greedy_text([5, 6, 7], 3)


async def test_case_18_a_stage_that_stops_finishes_the_step_in_hand() -> None:
    entered, gate = threading.Event(), threading.Event()

    def on_run(stage: int, rows: Sequence[Row]) -> None:
        entered.set()
        assert gate.wait(DEADLINE)

    patience = Patience(hand_over=0.05, drain=DEADLINE)
    async with fake_pipeline(1, on_run=on_run, patience=patience) as handles, open_ring(handles) as ring:
        # As a router does: a heartbeat proves that results are being read before anything is at stake.
        await ring.send(Heartbeat(7))
        assert (await ring.result()).heartbeat == 7
        await ring.send(Step((first_row(),)))
        await ring.send(Step((first_row(2),)))
        await until_elsewhere(entered.is_set)
        stopping = asyncio.ensure_future(handles[0].server.stop())
        await until_elsewhere(lambda: handles[0].stage.describe().state is StageState.DRAINING)
        assert await health_of(handles[0]) == "NOT_SERVING"
        await until_elsewhere(lambda: handles[0].stage._session.work.over)  # nobody has moved: it waits no longer
        gate.set()
        assert [outcome.seq for outcome in (await ring.result()).outcomes] == [1]
        assert (await refusal(ring.results))[0] == "StageNotReady"
        assert await stopping is True
        assert handles[0].engine.closed
        assert handles[0].engine.steps == 1


async def test_case_18_a_stage_that_stops_says_so_and_serves_on_until_its_router_has_left() -> None:
    async with fake_pipeline(2, patience=Patience(hand_over=DEADLINE, orphan=0.05)) as handles:
        async with open_ring(handles) as ring:
            await ring.step(first_row())
            stopping = asyncio.ensure_future(handles[1].server.stop())
            said: list[tuple[StageProgress, ...]] = []
            async with asyncio.timeout(DEADLINE):
                while not any(each.draining for progress in said for each in progress):
                    said.append(decode_progress(await ring.run.read()))
            assert [(each.stage, each.draining) for each in said[-1]] == [(0, False), (1, True)]
            assert (await ring.step(first_row(2))).outcomes
            assert await open_refusal(handles[1], open_request(handles, 1, 9)) == (
                "StageNotReady",
                "stage is draining: stopping: serving on until the router has moved",
            )
            assert not stopping.done()
        assert await asyncio.wait_for(stopping, DEADLINE) is True


async def test_a_stage_says_how_far_it_and_those_behind_it_are_while_they_compute() -> None:
    gate = threading.Event()

    def on_run(stage: int, rows: Sequence[Row]) -> None:
        if stage == 1 and rows[0].seq == 2:
            assert gate.wait(DEADLINE)

    async with fake_pipeline(2, on_run=on_run) as handles, open_ring(handles) as ring:
        try:
            await ring.step(first_row())
            await ring.send(Step((first_row(2),)))
            async with asyncio.timeout(DEADLINE):
                while True:
                    said = decode_progress(await ring.run.read())
                    if len(said) == 2 and said[1].busy_ms > 300:
                        break
            assert [(each.stage, each.done) for each in said] == [(0, 2), (1, 1)]
            assert said[0].busy_ms == 0
        finally:
            gate.set()


async def test_frames_that_are_refused_are_counted_by_what_was_wrong() -> None:
    async with fake_pipeline(1) as handles:
        async with open_ring(handles) as ring:
            await ring.step(first_row())
            await ring.send(Step((first_row(2),)), number=0)  # as a replayed frame
            assert (await refusal(ring.run))[0] == "InvalidFrame"
        async with open_ring(handles, epoch=2) as ring:
            await ring.send(Step((first_row(),)), epoch=1)
            assert (await refusal(ring.run))[0] == "StaleEpoch"
        async with stub_of(handles[0]) as stub:
            said = decode_description(await stub.Describe(DescribeRequest(), timeout=DEADLINE))
        assert said.refused == {"InvalidFrame": 1, "StaleEpoch": 1}
        await until_elsewhere(lambda: handles[0].stage.describe().held == 0)


async def test_what_a_stage_holds_is_counted_over_its_epochs_and_let_go_with_them() -> None:
    async with fake_pipeline(1) as handles:
        stage = handles[0].stage
        async with open_ring(handles) as ring:
            await ring.step(first_row(1), first_row(2))
            assert stage.describe().held == 2
            await ring.send(Release((1,)))
            await ring.step(first_row(3))
            assert stage.describe().held == 2
        async with open_ring(handles, epoch=2) as ring:
            await ring.step(first_row(1))
            assert stage.describe().held == 1
            assert handles[0].engine.live == {1}


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


async def test_a_stage_needs_no_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images hold the code beside its libraries: pip knows of no package called shoal there."""

    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    async with fake_pipeline(1) as (stage,), stub_of(stage) as stub:
        said = decode_description(await stub.Describe(DescribeRequest(), timeout=DEADLINE))
    assert said.versions["shoal"] == __version__
