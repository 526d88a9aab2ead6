"""Speculation over real gRPC stages: with the fake engine whatever comes and goes, with SmolLM2 in exact mode.

The drafter knows the text that plain decoding gave and is wrong now and then. So every text must be that text, for
rows of several drafts, for several rows in flight, on both engines; and it must come in fewer steps.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.models import smollm2
from shoal.manifest import read_manifest
from shoal.resource import SpeculativeMode
from shoal.wire.errors import StageFailed
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.schedule.fake_drafter import FakeDrafter
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings
from shoal_stage.server.fake import fake_pipeline, start_stage
from shoaltest.waiting import until_elsewhere

SETTINGS = StepLoopSettings(prefill_chunk=32, backoff=0.05, longest_backoff=0.2)
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=7, frequency_penalty=0.4, repetition_penalty=1.1, logprobs=2)
# "The capital of France is" and another beginning, as SmolLM2's tokenizer cuts them.
PROMPTS = [(504, 3575, 282, 4649, 314), (504, 314)]


@asynccontextmanager
async def serving(handles, settings=SETTINGS, drafter=None):
    plan = planned_at([handle.address for handle in handles], [handle.blocks for handle in handles], None)
    guard = GuardedDrafter(drafter) if drafter is not None else None
    loop = StepLoop(RingOpener(FixedPlan(plan), prefill_chunk=settings.prefill_chunk), settings, drafter=guard)
    await loop.start()
    try:
        await loop.wait_ready(60)
        yield loop
    finally:
        await loop.stop()


async def collect(loop, request):
    deltas = [delta async for delta in loop.generate(request)]
    return [(token, index) for index, delta in enumerate(deltas) for token in delta.tokens], deltas


async def answers(loop, requests):
    """For each request its ids and their logprobs, all at once."""
    found = await asyncio.gather(*(collect(loop, request) for request in requests))
    return [
        ([token for token, _ in ids], [each for delta in deltas for each in delta.logprobs]) for ids, deltas in found
    ]


def knowing(requests, texts, accuracy, seed=0):
    """Drafts from the known answers. Requests are numbered in the order in which they are made."""
    known = [[*request.prompt, *text, *[0] * 64] for request, (text, _) in zip(requests, texts, strict=True)]
    return FakeDrafter(lambda seq, ids: known[seq][len(ids)], random.Random(seed), accuracy=accuracy)


def speculating(**kwargs):
    return replace(SETTINGS, speculation=SpeculationSettings(**kwargs))


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("chunks", [0, 1, 4])
async def test_random_requests_speculate_over_grpc_and_keep_their_texts(paged, chunks):
    rng = random.Random(chunks)
    requests = [
        GenerationRequest(
            str(number),
            tuple(rng.choices(range(4), k=rng.randint(1, 30))),
            SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=number, frequency_penalty=rng.choice([0.0, 0.5])),
            rng.randint(1, 24),
        )
        for number in range(40)
    ]
    async with fake_pipeline(1, paged=False, sequences=4) as handles, serving(handles) as loop:
        texts = await answers(loop, requests)
    capacity = {"sequences": 4, "blocks": 48, "block_size": 4, "max_context": 64}
    mode = SpeculativeMode.AUTO if chunks == 0 else SpeculativeMode.FIXED
    settings, drafter = speculating(mode=mode, max_chunks=chunks, max_tokens=4), knowing(requests, texts, 0.8)
    async with fake_pipeline(3, paged=paged, **capacity) as handles, serving(handles, settings, drafter) as loop:
        assert await answers(loop, requests) == texts
        fake = loop.speculation.sources["fake"]
        assert fake.accepted > 0
        assert not drafter.texts
        loop._scheduler.check_integrity()


async def test_case_9_a_stage_lost_with_drafts_in_flight_changes_no_text():
    requests = [GenerationRequest(str(n), (n, 5, 9), SamplingParams(seed=n), 60) for n in range(3)]
    async with fake_pipeline(1) as handles, serving(handles) as loop:
        texts = await answers(loop, requests)
    settings = speculating(mode=SpeculativeMode.FIXED, max_chunks=4, max_tokens=3)
    async with (
        fake_pipeline(2) as handles,
        serving(handles, settings, knowing(requests, texts, 0.7)) as loop,
        asyncio.timeout(30),
    ):
        tasks = [asyncio.create_task(collect(loop, request)) for request in requests]
        await until_elsewhere(lambda: loop.status().steps >= 5)
        handles[1].stage._session.end(StageFailed("lost"))
        found = [[token for token, _ in ids] for ids, _ in await asyncio.gather(*tasks)]
        assert found == [text for text, _ in texts]
        assert loop.status().epoch > 1


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2-135M-Instruct as a model directory (INT4), compiled once into the user's cache."""
    return smollm2().directory


@asynccontextmanager
async def stages_of(model, kind, split):
    manifest, settings = read_manifest(model), EngineSettings(exact=True, sequences=6, max_context=256, threads=1)
    async with AsyncExitStack() as stack:
        handles = []
        for start, end in pairwise(split):

            def load(start=start, end=end):
                return open_engine(kind, model, manifest, start, end, settings)

            handles.append(await stack.enter_async_context(start_stage(load, manifest=manifest, blocks=(start, end))))
        yield handles


@pytest.mark.parametrize("kind", [EngineKind.PAGED, EngineKind.STATEFUL])
async def test_case_p5_smollm2_gives_one_text_for_every_depth_and_draft(model, kind):
    """Greedy and seeded, with penalties and logprobs; one chunk or four in flight; alone and side by side."""
    requests = [
        GenerationRequest(f"{n} {params.seed}", prompt, params, 16)
        for params in (GREEDY, SAMPLED)
        for n, prompt in enumerate(PROMPTS)
    ]
    async with stages_of(model, EngineKind.PAGED, (0, 32)) as handles, serving(handles) as loop:
        texts = await answers(loop, requests)
    async with stages_of(model, kind, (0, 15, 32)) as handles:
        for chunks, accuracy, together in ((1, 0.8, True), (4, 0.6, True), (4, 1.0, False)):
            settings = speculating(mode=SpeculativeMode.FIXED, max_chunks=chunks, max_tokens=4)
            drafter = knowing(requests, texts, accuracy)
            async with serving(handles, settings, drafter) as loop:
                if together:
                    found = await answers(loop, requests)
                else:
                    found = [(await answers(loop, [request]))[0] for request in requests]
                assert [ids for ids, _ in found] == [ids for ids, _ in texts]
                for (_, scores), (_, expected) in zip(found, texts, strict=True):
                    assert [each.logprob for each in scores] == pytest.approx(
                        [each.logprob for each in expected], abs=1e-4
                    )
                fake = loop.speculation.sources["fake"]
                assert fake.accepted / fake.verified == pytest.approx(accuracy, abs=0.2)
                if accuracy == 1.0:
                    assert loop.status().steps < 16 * len(requests) / 2
