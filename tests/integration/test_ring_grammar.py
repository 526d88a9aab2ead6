"""Grammars over real gRPC stages: the same valid answer however it is split, drafted, or interrupted."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from dataclasses import replace

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from shoal.resource import SpeculativeMode
from shoal.wire.errors import StageFailed
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationRequest, GrammarFailed
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.schedule.fake_drafter import FakeDrafter
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.fake import EOS_ID, fake_text_model, fake_tokenizer
from shoal_stage.server.fake import fake_pipeline
from shoaltest.waiting import until_elsewhere

VOCAB = 300
TEXT = fake_text_model()
SETTINGS = StepLoopSettings(prefill_chunk=16, backoff=0.05, longest_backoff=0.2)
DRAFTING = replace(SETTINGS, speculation=SpeculationSettings(mode=SpeculativeMode.FIXED, max_chunks=3, max_tokens=4))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,9}$"},
        "tags": {"type": "array", "items": {"enum": ["left", "right", "both"]}, "minItems": 2, "maxItems": 5},
        "at": {"type": "string", "format": "date"},
    },
    "required": ["name", "tags", "at"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_pattern": "[ \\n]{0,2}"})
REQUESTS = [
    GenerationRequest(
        str(number),
        tuple(range(40, 50 + number)),
        SamplingParams(temperature=[0.0, 1.0][number % 2], seed=number, logprobs=2, grammar=GRAMMAR),
        300,
        frozenset({EOS_ID}),
    )
    for number in range(6)
]


def tokenizer() -> LLTokenizer:
    return LLTokenizer(fake_tokenizer().to_str(), n_vocab=VOCAB, eos_token=[EOS_ID])


@asynccontextmanager
async def serving(stages, settings=SETTINGS, drafter=None, **engine):
    async with fake_pipeline(stages, vocab_size=VOCAB, tokenizer=tokenizer, **engine) as handles:
        plan = planned_at([handle.address for handle in handles], [handle.blocks for handle in handles], None)
        guard = GuardedDrafter(drafter) if drafter is not None else None
        loop = StepLoop(RingOpener(FixedPlan(plan), prefill_chunk=settings.prefill_chunk), settings, drafter=guard)
        await loop.start()
        try:
            await loop.wait_ready(60)
            yield loop, handles
        finally:
            await loop.stop()


async def collect(loop, request):
    deltas = [delta async for delta in loop.generate(request)]
    ids = [token for delta in deltas for token in delta.tokens]
    return ids, [score for delta in deltas for score in delta.logprobs]


async def all_of(loop):
    return await asyncio.gather(*(collect(loop, request) for request in REQUESTS))


def knowing(answers):
    known = [[*request.prompt, *ids, *[3] * 64] for request, (ids, _) in zip(REQUESTS, answers, strict=True)]
    # No guess is an end.
    return FakeDrafter(lambda seq, ids: max(known[seq][len(ids)], 3), random.Random(1), accuracy=0.8)


async def test_case_81_answers_are_valid_and_end_by_themselves():
    async with serving(1) as (loop, _):
        for ids, scores in await all_of(loop):
            assert ids[-1] == EOS_ID
            jsonschema.validate(json.loads(TEXT.decode(ids)), SCHEMA)
            assert len(scores) == len(ids)


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("drafts", [False, True])
async def test_a_split_and_drafts_change_neither_ids_nor_logprobs(stages, drafts, paged):
    async with serving(1) as (loop, _):
        expected = await all_of(loop)
    drafter, settings = (knowing(expected), DRAFTING) if drafts else (None, SETTINGS)
    async with serving(stages, settings, drafter, paged=paged, sequences=4) as (loop, _):
        assert await all_of(loop) == expected
        if drafts:
            assert loop.speculation.sources["fake"].accepted > 0


@pytest.mark.parametrize("drafts", [False, True])
async def test_case_9_a_stage_lost_in_mid_answer_changes_nothing(drafts):
    async with serving(1) as (loop, _):
        expected = await all_of(loop)
    drafter, settings = (knowing(expected), DRAFTING) if drafts else (None, SETTINGS)
    async with serving(2, settings, drafter) as (loop, handles), asyncio.timeout(60):
        epoch = loop.status().epoch
        tasks = [asyncio.create_task(collect(loop, request)) for request in REQUESTS]
        await until_elsewhere(lambda: loop.status().steps >= 12)
        handles[1].stage._session.end(StageFailed("lost"))
        assert await asyncio.gather(*tasks) == expected
        assert loop.status().epoch > epoch


async def test_a_grammar_that_the_stage_cannot_use_ends_its_own_answer_only():
    bad = replace(REQUESTS[0], params=replace(REQUESTS[0].params, grammar="start: nowhere"))
    async with serving(2) as (loop, _), asyncio.timeout(30):
        epoch = loop.status().epoch
        good = asyncio.create_task(collect(loop, REQUESTS[1]))
        with pytest.raises(GrammarFailed, match="nowhere"):
            await collect(loop, bad)
        assert (await good)[0][-1] == EOS_ID
        assert loop.status().epoch == epoch
        loop._scheduler.check_integrity()
