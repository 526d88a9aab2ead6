"""Measuring once, when nobody asks: what is told, when it begins again, and that it makes room."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client import CollectorRegistry

from shoal.errors import PlanError
from shoal.measured import MEASURED_PATH, Measured, placement_of
from shoal.plan.document import Device, MemorySum, PipelinePlan, Plan, StagePlan, Standby
from shoal_router.generation import FinishReason, GenerationFailed, GeneratorStatus, TokenDelta
from shoal_router.measure import TOKENS, Measurer
from shoal_router.metrics.listen import metrics_app
from shoal_router.watch.lost import LostStages
from shoaltest.waiting import until_elsewhere

SECONDS = 10


def plan(*nodes: str) -> Plan:
    memory = MemorySum(weights=1, load_peak=0, kv=0, runtime=0)
    stages = tuple(
        StagePlan(index=index, node=node, device=Device.CPU, block_start=index, block_end=index + 1, memory=memory)
        for index, node in enumerate(nodes)
    )
    return Plan(pipelines=(PipelinePlan(index=0, stages=stages),))


class Timed:
    """A generator whose prompt takes 0.5 s and each further token 0.1 s of a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.others = 0
        self.came_at: int | None = None
        self.began = self.closed = self.running = 0
        self.error: Exception | None = None

    def status(self) -> GeneratorStatus:
        return GeneratorStatus(
            ready=True, detail="", max_context=512, epoch=1, running=self.running + self.others, waiting=0
        )

    async def generate(self, request):
        if self.error is not None:
            raise self.error
        self.began += 1
        self.running += 1
        try:
            for number in range(TOKENS):
                self.now += 0.1 if number else 0.5
                self.others += number == self.came_at
                await asyncio.sleep(0)
                yield TokenDelta((7,), finish=FinishReason.LENGTH if number == TOKENS - 1 else None)
        finally:
            self.running -= 1
            self.closed += 1


@asynccontextmanager
async def measuring(generator, read_plan):
    measurer = Measurer(generator, read_plan, (1, 2, 3), clock=lambda: generator.now, look_seconds=0.001)
    await measurer.start()
    try:
        yield measurer
    finally:
        await measurer.stop()
        await measurer.stop()


async def test_a_lone_users_figures_once():
    generator, there, looks = Timed(), plan("a", "b"), 0

    def read_plan():
        nonlocal looks
        looks += 1
        return there

    async with measuring(generator, read_plan) as measurer:
        await until_elsewhere(lambda: measurer.measured)
        assert measurer.measured == Measured(
            placement=placement_of(there), firstTokenMs=500.0, tokensPerSecond=10.0, promptTokens=3
        )
        await until_elsewhere(lambda: looks > 20)
        assert generator.began == 1


async def test_it_waits_until_nobody_asks_and_leaves_when_somebody_does():
    generator = Timed()
    generator.others, generator.came_at = 0, 5
    async with measuring(generator, lambda: plan("a")) as measurer:
        await until_elsewhere(lambda: generator.closed)
        assert measurer.measured is None
        generator.came_at = None
        assert generator.began == 1, "it does not begin while somebody asks"
        generator.others = 0
        await until_elsewhere(lambda: measurer.measured)
        assert generator.began == 2


async def test_stages_elsewhere_are_measured_anew_and_standbys_are_not():
    generator = Timed()
    there = plan("a", "b")
    async with measuring(generator, lambda: there) as measurer:
        await until_elsewhere(lambda: measurer.measured)
        first = measurer.measured.placement
        there = there.model_copy(update={"standbys": (Standby(pipeline=0, stage=plan("c").pipelines[0].stages[0]),)})
        assert placement_of(there) == first
        there = plan("a", "c")
        await until_elsewhere(lambda: measurer.measured and measurer.measured.placement != first)
        assert measurer.measured.placement == placement_of(there)
        assert generator.began == 2


async def test_a_loss_and_a_plan_that_cannot_be_read_are_no_end():
    generator = Timed()
    generator.error = GenerationFailed("the pipeline was lost")
    readable = False

    def read() -> Plan:
        if not readable:
            raise PlanError("half a plan")
        return plan("a")

    async with measuring(generator, read) as measurer:
        readable = True
        await until_elsewhere(lambda: generator.error is not None)
        generator.error = None
        await until_elsewhere(lambda: measurer.measured)


async def test_it_is_told_beside_the_metrics():
    found: Measured | None = None
    app = metrics_app(CollectorRegistry(), LostStages(tuple), lambda: found)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
        assert (await client.get(MEASURED_PATH)).status_code == 204
        found = Measured(placement="here", firstTokenMs=1.5, tokensPerSecond=8.0, promptTokens=60)
        answer = await client.get(MEASURED_PATH)
        assert Measured.model_validate(answer.json()) == found
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize("change", [{"model_digest": "b" * 64}, {"pipelines": plan("a", "z").pipelines}])
def test_a_placement_is_named_by_model_and_places(change):
    there = plan("a", "b")
    assert placement_of(there.model_copy(update=change)) != placement_of(there)
    assert placement_of(there.model_copy(update={"reasons": ("other",)})) == placement_of(there)
