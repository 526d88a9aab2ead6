"""The whole path with a real model in exact mode: many users at once, some of whom leave, each as if alone.

Two real stage servers behind gRPC, the real router; prompts that share beginnings, sampled and greedy, in a KV pool
too small for all, so that prefixes are reused and sequences preempted. Every answer equals the one that the same
request gets alone; afterwards no page is lost, no stage holds anything, and memory has not grown.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from bench.models import smollm2
from bench.prompts import prompts
from shoal.manifest import read_manifest
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.model import TextModel, load_text_model
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings
from shoal_stage.server.fake import StageHandle, start_stage
from shoaltest.waiting import until_elsewhere

CONTEXT = 320
CUT = 17
FREE_SECONDS = 10.0
GROWN = 32 << 20


@dataclass(frozen=True)
class Job:
    request: GenerationRequest
    leaves_after: int | None
    """Tokens after which the client closes the connection."""


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2-135M-Instruct as a model directory (INT4), compiled once into the user's cache."""
    return smollm2().directory


def random_jobs(text: TextModel, count: int, longest_prompt: int, longest_answer: int, seed: int) -> list[Job]:
    rng = random.Random(seed)
    asked = [text.encode(prompt, add_special_tokens=False) for prompt in prompts()]
    long = [tuple(token for ids in rng.sample(asked, len(asked)) for token in ids) for _ in range(3)]
    jobs = []
    for number in range(count):
        shared = rng.choice([0, 0, longest_prompt * 2 // 3])
        prompt = rng.choice(long)[:shared] + tuple(rng.choice(asked))[: rng.randint(4, longest_prompt // 3)]
        drawn = rng.random() < 0.5
        params = SamplingParams(temperature=0.8 if drawn else 0.0, seed=number)
        request = GenerationRequest(str(number), prompt, params, rng.randint(1, longest_answer))
        jobs.append(Job(request, rng.choice([None, None, None, 1, longest_answer // 2])))
    return jobs


@asynccontextmanager
async def pipeline(
    model: Path, settings: EngineSettings, *cuts: int
) -> AsyncIterator[tuple[StepLoop, list[StageHandle]]]:
    manifest = read_manifest(model)
    edges = [0, *cuts, len(manifest.blocks)]
    ranges = list(pairwise(edges))
    async with AsyncExitStack() as stack:
        handles = [
            await stack.enter_async_context(
                start_stage(
                    lambda start=start, end=end: open_engine(EngineKind.PAGED, model, manifest, start, end, settings),
                    manifest=manifest,
                    blocks=(start, end),
                )
            )
            for start, end in ranges
        ]
        plan = FixedPlan(planned_at([handle.address for handle in handles], ranges, manifest.digest))
        chunk = 64
        loop = StepLoop(RingOpener(plan, prefill_chunk=chunk), StepLoopSettings(prefill_chunk=chunk))
        await loop.start()
        try:
            await loop.wait_ready(60)
            yield loop, handles
        finally:
            await loop.stop()


async def answer(loop: StepLoop, request: GenerationRequest, leaves_after: int | None = None) -> list[int]:
    tokens: list[int] = []
    async with aclosing(loop.generate(request)) as stream:
        async for delta in stream:
            tokens += delta.tokens
            if leaves_after is not None and len(tokens) >= leaves_after:
                break
    return tokens


async def check(model: Path, jobs: list[Job], at_once: int) -> None:
    """Run the jobs alone on one stage, then `at_once` at a time on two, twice; compare answers, pages and memory."""
    alone = EngineSettings(exact=True, sequences=1, max_context=CONTEXT, threads=1)
    async with pipeline(model, alone) as (loop, _):
        solo = [await answer(loop, job.request) for job in jobs]
    shared = EngineSettings(exact=True, sequences=8, max_context=CONTEXT, kv_blocks=40, threads=1)
    async with pipeline(model, shared, CUT) as (loop, handles):
        limit = asyncio.Semaphore(at_once)

        async def run(job: Job) -> list[int]:
            async with limit:
                return await answer(loop, job.request, job.leaves_after)

        memory = []
        for _ in range(2):
            answers = await asyncio.gather(*map(run, jobs))
            await all_free(loop, handles)
            memory.append(psutil.Process().memory_info().rss)
            for job, expected, tokens in zip(jobs, solo, answers, strict=True):
                complete = expected if job.leaves_after is None else expected[: len(tokens)]
                assert tokens == complete, job.request
        assert memory[1] - memory[0] < GROWN


async def all_free(loop: StepLoop, handles: list[StageHandle]) -> None:
    await until_elsewhere(lambda: not any(handle.engine._engine._lengths.live for handle in handles), FREE_SECONDS)
    scheduler = loop._scheduler
    assert scheduler is not None
    scheduler.check_integrity()
    load = scheduler.load
    assert (load.running, load.waiting, load.free_blocks) == (0, 0, load.blocks)


async def test_a_dozen_users_with_leavers_get_their_solo_answers(model: Path) -> None:
    await check(model, random_jobs(load_text_model(model), 16, 60, 10, seed=1), at_once=12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_200_requests_32_at_once_with_leavers_get_their_solo_answers(model: Path) -> None:
    await check(model, random_jobs(load_text_model(model), 200, 240, 30, seed=2), at_once=32)
