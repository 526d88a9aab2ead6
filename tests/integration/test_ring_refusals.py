"""Bad peers at a ring under mutual TLS: refused with a reason, counted in a metric, and nothing else is disturbed.

In each test two answers are under way while the intruder tries. Afterwards they end with the texts that they would have
had, and Prometheus is told who refused what.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from chaos.certificates import issue
from shoal.wire.codec import encode_frame
from shoal.wire.errors import (
    CallerRefused,
    DigestMismatch,
    InvalidFrame,
    StageUnreachable,
    StaleEpoch,
    WrongPlace,
    from_rpc_error,
)
from shoal.wire.messages import Frame, Heartbeat, Row, SamplingParams
from shoal.wire.refused import RefusedPeers
from shoal.wire.stage_pb2 import DescribeRequest, OpenRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal.wire.tls import TlsDirectory
from shoal.wire.transport import open_channel
from shoal_router.generation import GenerationRequest
from shoal_router.metrics.families import Families
from shoal_router.metrics.levels import Levels
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_stage.engine.fake import FakeEngine, fake_manifest, greedy_text
from shoal_stage.server import refused as stage_refused
from shoal_stage.server.fake import StageHandle, fake_pipeline, start_stage
from shoal_stage.server.onward import NextHop
from shoal_stage.server.session import Session
from shoaltest.waiting import until_elsewhere

SECONDS = 20
PROMPTS, LENGTH = ((1, 2, 3), (4, 5)), 40
Certificates = dict[str, TlsDirectory]


@pytest.fixture
def pki(tmp_path: Path) -> Certificates:
    return issue(tmp_path / "llama", "llama")


@dataclass
class Office:
    """A pipeline with two answers under way, which wait at the tenth step until `go`."""

    stages: list[StageHandle]
    loop: StepLoop
    refused: RefusedPeers
    go: threading.Event
    families: Families = field(default_factory=Families)

    def __post_init__(self) -> None:
        self.families.registry.register(
            Levels(self.loop.status, self.loop.speculation, lambda: {0: self.refused.counts})
        )

    def counted(self, where: str, reason: str) -> float:
        labels = {"pipeline": "0", "where": where, "reason": reason}
        return self.families.registry.get_sample_value("shoal_refused_total", labels) or 0.0

    def opener(self, stages: Sequence[StageHandle], tls: TlsDirectory) -> RingOpener:
        ranges = [stage.blocks for stage in self.stages]
        plan = planned_at([each.address for each in stages], ranges, self.stages[0].manifest.digest)
        return RingOpener(FixedPlan(plan), prefill_chunk=16, tls=tls, refused=self.refused)


@asynccontextmanager
async def office(pki: Certificates, *, undisturbed: bool = True) -> AsyncIterator[Office]:
    go, rows = threading.Event(), 0

    def on_run(stage: int, step: Sequence[Row]) -> None:
        nonlocal rows
        if stage == 0:  # each stage has a thread of its own
            rows += 1
            if rows == 10:
                assert go.wait(SECONDS)

    async with fake_pipeline(2, tls=pki["stage"], on_run=on_run) as stages:
        refused = RefusedPeers()
        plan = planned_at(
            [each.address for each in stages], [each.blocks for each in stages], stages[0].manifest.digest
        )
        opener = RingOpener(FixedPlan(plan), prefill_chunk=16, tls=pki["router"], refused=refused)
        loop = StepLoop(opener, StepLoopSettings(prefill_chunk=16, backoff=0.02, longest_backoff=0.1))
        await loop.start()
        try:
            await loop.wait_ready(SECONDS)
            epoch = loop.status().epoch
            answers = asyncio.gather(*(collect(loop, prompt) for prompt in PROMPTS))
            await until_elsewhere(lambda: rows == 10)
            yield Office(stages, loop, refused, go)
            assert not answers.done() or not undisturbed
            go.set()
            async with asyncio.timeout(SECONDS):
                assert await answers == [greedy_text(prompt, LENGTH) for prompt in PROMPTS]
            assert (loop.status().epoch == epoch) is undisturbed
            await until_elsewhere(lambda: not any(stage.engine.live for stage in stages))
        finally:
            go.set()
            await loop.stop()


async def collect(loop: StepLoop, prompt: tuple[int, ...]) -> list[int]:
    request = GenerationRequest("r", prompt, SamplingParams(temperature=0.0), LENGTH)
    return [token async for delta in loop.generate(request) for token in delta.tokens]


async def refusal(call: Any) -> Exception:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return from_rpc_error(error.value, "there")


async def describe(address: str, tls: TlsDirectory | None) -> Exception:
    async with open_channel(address, 1 << 20, tls) as channel:
        return await refusal(StageStub(channel).Describe(DescribeRequest(), timeout=SECONDS))


@pytest.mark.parametrize("who", ["without a certificate", "of another authority"])
async def test_a_caller_with_no_or_a_wrong_certificate_is_refused_and_counted(
    pki: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(stage_refused, "HANDSHAKE_SECONDS", 0.2)
    stranger = None if who == "without a certificate" else issue(tmp_path / "other", "other")["router"]
    async with office(pki) as running:
        assert isinstance(await describe(running.stages[0].address, stranger), StageUnreachable)
        await until_elsewhere(lambda: running.counted("stage-0", "Handshake") >= 1)
        assert running.counted("stage-1", "Handshake") == 0


async def test_a_stage_of_another_pipeline_is_refused_and_counted(pki: Certificates, tmp_path: Path) -> None:
    """The router is told of a stage that another pipeline's authority vouches for."""
    other = issue(tmp_path / "other", "other")
    async with (
        office(pki) as running,
        start_stage(
            lambda: FakeEngine(3, 6), manifest=running.stages[0].manifest, blocks=(3, 6), tls=other["stage"]
        ) as stranger,
    ):
        opener = running.opener([running.stages[0], stranger], pki["router"])
        with pytest.raises(StageUnreachable, match="not open after"):
            await opener.open(deadline_seconds=1.0, progress=lambda _: None)
        assert running.counted("router", "Handshake") >= 1


async def test_a_stage_of_another_digest_is_refused_and_counted(pki: Certificates) -> None:
    manifest = fake_manifest(name="another")
    async with (
        office(pki) as running,
        start_stage(lambda: FakeEngine(3, 6), manifest=manifest, blocks=(3, 6), tls=pki["stage"]) as stranger,
    ):
        with pytest.raises(DigestMismatch, match=f"stage 1 at {stranger.address} holds model"):
            await running.opener([running.stages[0], stranger], pki["router"]).open(
                deadline_seconds=SECONDS, progress=lambda _: None
            )
        assert running.counted("router", "DigestMismatch") == 1


async def test_a_stage_in_another_place_is_refused_and_counted(pki: Certificates) -> None:
    async with office(pki) as running:
        with pytest.raises(WrongPlace, match="holds blocks 3:6, the plan gives it 0:3"):
            await running.opener(running.stages[::-1], pki["router"]).open(
                deadline_seconds=SECONDS, progress=lambda _: None
            )
        assert running.counted("router", "WrongPlace") == 1


async def test_a_neighbour_that_would_open_the_stage_is_refused_and_counted(pki: Certificates) -> None:
    async with office(pki) as running, open_channel(running.stages[0].address, 1 << 20, pki["stage"]) as channel:
        error = await refusal(StageStub(channel).Open(OpenRequest(epoch=1 << 40), timeout=SECONDS))
        assert isinstance(error, CallerRefused)
        await until_elsewhere(lambda: running.counted("stage-0", "CallerRefused") == 1)


@pytest.mark.parametrize(("age", "error"), [(0, WrongPlace), (1, StaleEpoch), (-1, WrongPlace)])
async def test_a_frame_on_a_stream_of_somebody_else_is_refused_and_counted(
    pki: Certificates, age: int, error: type[Exception]
) -> None:
    """Of this epoch, which has its upstream; of one that is over; of one that nobody has opened."""
    async with office(pki) as running, open_channel(running.stages[1].address, 1 << 20, pki["stage"]) as channel:
        run = StageStub(channel).Run(timeout=SECONDS)
        await run.write(encode_frame(Frame(running.loop.status().epoch - age, 0, Heartbeat(1))))
        assert (await run.read()).frames > 0
        assert isinstance(await refusal(run.read()), error)
        await until_elsewhere(lambda: running.counted("stage-1", error.__name__) == 1)


@pytest.mark.parametrize("how", ["replayed", "reordered", "lost"])
async def test_a_frame_that_its_link_replays_reorders_or_loses_is_refused_and_counted(
    pki: Certificates, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The epoch ends there, and the answers go on in the next one with the same texts."""
    write, seen, held = NextHop.write, 0, []

    async def faulty(self: NextHop, message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 20:
            if how != "replayed":
                held.append(message)
                return
            await write(self, message)
        await write(self, message)
        if held and how == "reordered":
            await write(self, held.pop())

    monkeypatch.setattr(NextHop, "write", faulty)
    accept, reasons = Session.accept, []

    def noted(self: Session, message: Any) -> None:
        try:
            accept(self, message)
        except InvalidFrame as error:
            reasons.append(str(error))
            raise

    monkeypatch.setattr(Session, "accept", noted)
    async with office(pki, undisturbed=False) as running:
        running.go.set()
        await until_elsewhere(lambda: running.counted("stage-1", "InvalidFrame") == 1)
        assert [reason.partition(": ")[0].split()[2:] for reason in reasons] == [["is", "out", "of", "order"]]
