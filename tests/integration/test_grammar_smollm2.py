"""SmolLM2 under a schema, in exact mode: one valid answer for every split, engine and draft, with its logprobs."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

from shoal.grammar import tokenizer_of
from shoal.manifest import read_manifest
from shoal.resource import SpeculativeMode, load_sharded_model
from shoal.wire.messages import SamplingParams
from shoal_cli.cache import checkpoints_dir, models_dir
from shoal_router.constrain.check import ProcessCheck
from shoal_router.constrain.constraint import Constraint, Form
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.schedule.fake_drafter import FakeDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.model import load_text_model
from shoal_stage.compile import CompileOptions, compile_model, resolve_source
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings
from shoal_stage.sample.grammar import Grammars
from shoal_stage.server.fake import start_stage

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"
SETTINGS = StepLoopSettings(prefill_chunk=32)
DRAFTING = replace(SETTINGS, speculation=SpeculationSettings(mode=SpeculativeMode.FIXED, max_chunks=3, max_tokens=4))
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "country": {"enum": ["France", "Spain"]},
        "rank": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "country", "rank"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Name a city as JSON with city, country and rank."}]


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2-135M-Instruct as a model directory (INT4), compiled once into the user's cache."""
    source = load_sharded_model(EXAMPLE).spec.model.source
    assert source is not None
    checkpoint = resolve_source(source.uri, checkpoints_dir(), source.sha256)
    return compile_model(checkpoint, models_dir() / "test-smollm2-int4", CompileOptions())


@asynccontextmanager
async def serving(model, kind, split, settings=SETTINGS, drafter=None):
    manifest, engine = read_manifest(model), EngineSettings(exact=True, sequences=4, max_context=256, threads=1)
    vocab_size, ends = manifest.shape.vocab_size, manifest.eos_token_ids
    async with AsyncExitStack() as stack:
        handles = []
        for start, end in pairwise(split):

            def load(start=start, end=end):
                return open_engine(kind, model, manifest, start, end, engine)

            last = end == len(manifest.blocks)
            grammars = Grammars(lambda: tokenizer_of(model, vocab_size, ends), vocab_size) if last else None
            stage = start_stage(load, manifest=manifest, blocks=(start, end), grammars=grammars)
            handles.append(await stack.enter_async_context(stage))
        plan = planned_at([handle.address for handle in handles], [handle.blocks for handle in handles], None)
        loop = StepLoop(RingOpener(FixedPlan(plan), prefill_chunk=32), settings, drafter=drafter)
        await loop.start()
        stack.push_async_callback(loop.stop)
        await loop.wait_ready(60)
        yield loop


async def collect(loop, request):
    deltas = [delta async for delta in loop.generate(request)]
    ids = [token for delta in deltas for token in delta.tokens]
    return ids, [score.logprob for delta in deltas for score in delta.logprobs]


async def test_case_81_smollm2_gives_one_valid_answer_for_every_split_engine_and_draft(model):
    text, manifest = load_text_model(model), read_manifest(model)
    check = ProcessCheck(model, manifest.shape.vocab_size, manifest.eos_token_ids)
    grammar = await check.grammar(Constraint(Form.JSON_SCHEMA, json.dumps(SCHEMA), "schema"))
    await check.stop()
    prompt = text.encode(text.render_chat(QUESTION), add_special_tokens=False)
    requests = [
        GenerationRequest(
            str(number),
            prompt,
            SamplingParams(temperature=temperature, seed=number, logprobs=2, grammar=grammar),
            80,
            text.stop_token_ids,
        )
        for number, temperature in enumerate((0.0, 0.9))
    ]

    async def answers(loop):
        return await asyncio.gather(*(collect(loop, request) for request in requests))

    async with serving(model, EngineKind.PAGED, (0, 32)) as loop:
        expected = await answers(loop)
    for ids, scores in expected:
        jsonschema.validate(json.loads(text.decode(ids)), SCHEMA)
        assert ids[-1] in text.stop_token_ids
        assert len(scores) == len(ids)
    known = [[*request.prompt, *ids, *[5] * 64] for request, (ids, _) in zip(requests, expected, strict=True)]
    ends = text.stop_token_ids
    for kind, split, drafts in (
        (EngineKind.PAGED, (0, 15, 32), True),
        (EngineKind.STATEFUL, (0, 9, 20, 32), True),
        (EngineKind.STATEFUL, (0, 15, 32), False),
    ):

        def guess(seq, ids):
            return 5 if known[seq][len(ids)] in ends else known[seq][len(ids)]

        drafter = FakeDrafter(guess, random.Random(2), accuracy=0.8) if drafts else None
        async with serving(model, kind, split, DRAFTING if drafts else SETTINGS, drafter) as loop:
            found = await answers(loop)
        for (ids, scores), (wanted, wanted_scores) in zip(found, expected, strict=True):
            assert ids == wanted
            assert scores == pytest.approx(wanted_scores, abs=1e-4)
