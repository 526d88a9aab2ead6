"""Speculation on real stages, exact mode: whatever drafts, the text is that of plain decoding.

Target SmolLM2 in its file's own 4-bit numbers, draft model the same rounded once more: right often, and wrong often.
CI runs a few prompts on two stages; the slow matrix is every source, split, engine and depth with 32 prompts
(`make test-speculation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from bench.models import smollm2
from shoal.manifest import read_manifest
from shoal.resource import SpeculativeMode
from shoal.vocabulary import read_vocabulary
from shoal.wire.drafts import DraftModel
from shoal.wire.messages import SamplingParams
from shoal_router.draft.choice import drafter_for
from shoal_router.draft.model import ModelDrafter
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.schedule.speculation import SpeculationStats
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.model import load_text_model
from shoal_stage.draft.server import DraftServer
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings
from shoal_stage.server.fake import StageHandle, start_stage
from shoal_stage.server.stage import Patience

BLOCKS = 32
USERS = 4
EXACT = EngineSettings(exact=True, sequences=USERS, max_context=256, threads=1)
DRAFTING = EngineSettings(sequences=USERS, max_context=256, threads=1)
SPLITS = {1: (0, BLOCKS), 2: (0, 16, BLOCKS), 3: (0, 11, 21, BLOCKS)}
ASKED = (
    "Repeat this sentence five times: the quick brown fox jumps over the lazy dog.",
    "Write a haiku about the sea.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "List the numbers from 1 to 30, each on a line of its own.",
)
TOPICS = ("rain", "a lighthouse", "prime numbers", "bread", "the moon", "bees", "chess", "a lost key")
DEADLINE = 280.0

Choose = Callable[[ModelDrafter], GuardedDrafter]
SOURCES: dict[str, Choose] = {
    "suffix": lambda model: drafter_for(None),
    "draft model": GuardedDrafter,
    "composite": drafter_for,
}


@dataclass(frozen=True)
class Models:
    target: Path
    draft: Path


@pytest.fixture(scope="module")
def models() -> Models:
    """SmolLM2 in its file's 4 bits and in rounded ones, compiled once into the user's cache."""
    return Models(smollm2(keep_stored=True).directory, smollm2().directory)


@asynccontextmanager
async def stages_of(model: Path, split: tuple[int, ...], kind: EngineKind) -> AsyncIterator[list[StageHandle]]:
    manifest = read_manifest(model)
    async with AsyncExitStack() as stack:
        handles = []
        for start, end in pairwise(split):

            def load(start: int = start, end: int = end) -> Engine:
                return open_engine(kind, model, manifest, start, end, EXACT)

            handles.append(await stack.enter_async_context(start_stage(load, manifest=manifest, blocks=(start, end))))
        yield handles


@asynccontextmanager
async def draft_model(models: Models) -> AsyncIterator[ModelDrafter]:
    """A draft server in this process, and the router's client of it."""
    manifest = read_manifest(models.draft)
    vocabulary = read_vocabulary(models.draft, manifest)

    def load() -> Engine:
        return open_engine(EngineKind.PAGED, models.draft, manifest, 0, BLOCKS, DRAFTING)

    model = DraftModel(manifest.name, manifest.digest, vocabulary.size, vocabulary.digest, DRAFTING.max_context)
    server = DraftServer(load, model, Patience(drain=5.0), prefill_chunk=64)
    drafter = ModelDrafter(
        await server.start("127.0.0.1:0"), read_vocabulary(models.target, read_manifest(models.target))
    )
    try:
        await server.settled.wait()
        await drafter.start()
        await asyncio.wait_for(drafter.connected.wait(), 30)
        yield drafter
    finally:
        await drafter.stop()
        await server.stop()


async def answers(
    stages: list[StageHandle],
    requests: list[GenerationRequest],
    choose: Choose | None = None,
    model: ModelDrafter | None = None,
    max_chunks: int = 0,
) -> tuple[list[list[int]], SpeculationStats]:
    """All requests at once, USERS of them at a time."""
    plan = planned_at([one.address for one in stages], [one.blocks for one in stages], stages[0].manifest.digest)
    drafter = choose(model) if choose is not None and model is not None else None
    speculation = SpeculationSettings(
        SpeculativeMode.OFF if drafter is None else SpeculativeMode.FIXED, max_tokens=4, max_chunks=max_chunks
    )
    loop = StepLoop(RingOpener(FixedPlan(plan)), StepLoopSettings(speculation=speculation), drafter=drafter)
    if model is not None:
        model.when_more(loop.nudge)
    await loop.start()
    try:
        await loop.wait_ready(60)

        async def one(request: GenerationRequest) -> list[int]:
            async with aclosing(loop.generate(request)) as stream:
                return [token async for delta in stream for token in delta.tokens]

        async with asyncio.timeout(DEADLINE * 4):
            return await asyncio.gather(*map(one, requests)), loop.speculation
    finally:
        await loop.stop()


def requests_for(model: Path, prompts: list[str], tokens: int) -> list[GenerationRequest]:
    """Each prompt greedily and with a seed; the seeded ones with every penalty."""
    text = load_text_model(model)
    seeded = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "frequency_penalty": 0.2}
    requests = []
    for number, prompt in enumerate(prompts):
        ids = text.encode(text.render_chat([{"role": "user", "content": prompt}]), add_special_tokens=False)
        for params in (SamplingParams(temperature=0.0), SamplingParams(**seeded, seed=number)):
            requests.append(GenerationRequest(f"{number}", ids, params, tokens, text.stop_token_ids))
    return requests


def accepted(stats: SpeculationStats) -> dict[str, int]:
    return {name: source.accepted for name, source in stats.sources.items() if source.accepted}


@pytest.mark.parametrize("kind", list(EngineKind))
async def test_case_p5_two_stages_say_the_same_with_and_without_drafts(models: Models, kind: EngineKind) -> None:
    requests = requests_for(models.target, list(ASKED[:2]), 24)
    async with draft_model(models) as model, stages_of(models.target, SPLITS[2], kind) as stages:
        plain, none = await answers(stages, requests)
        assert accepted(none) == {}
        for name, choose in SOURCES.items():
            drafted, stats = await answers(stages, requests, choose, model)
            assert drafted == plain, name
            assert accepted(stats), name


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(EngineKind))
@pytest.mark.parametrize("split", [1, 3])
async def test_case_p5_every_source_split_engine_and_depth_says_the_same(
    models: Models, kind: EngineKind, split: int
) -> None:
    """32 prompts, greedy and seeded, against the plain text of one paged stage."""
    prompts = [f"{form} {topic}." for topic in TOPICS for form in ("Explain", "Tell a story about", "Describe")]
    prompts += [*ASKED, *(f"Count: {number}, {number + 1}, {number + 2}," for number in range(4))]
    assert len(prompts) == 32
    requests = requests_for(models.target, prompts, 32)
    async with stages_of(models.target, SPLITS[1], EngineKind.PAGED) as stages:
        plain, _ = await answers(stages, requests)
    async with draft_model(models) as model, stages_of(models.target, SPLITS[split], kind) as stages:
        assert (await answers(stages, requests))[0] == plain
        for name, choose in SOURCES.items():
            for depth in (1, 4):
                drafted, stats = await answers(stages, requests, choose, model, depth)
                assert drafted == plain, f"{name}, {depth} chunks in flight"
                assert accepted(stats), f"{name}, {depth} chunks in flight"
