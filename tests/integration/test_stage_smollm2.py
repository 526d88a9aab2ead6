"""SmolLM2 in exact mode: one text for every engine, split, batch and draft, in one process and over gRPC."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing
from itertools import pairwise
from pathlib import Path

import pytest

from bench.models import smollm2
from shoal.manifest import Manifest, read_manifest
from shoal.wire.messages import Release, Row, RowOutcome, SamplingParams, SequenceStart
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings
from shoal_stage.sample.sampler import Sampler
from shoal_stage.server.fake import start_stage
from shoal_stage.server.fake_router import FakeRouter, open_ring

EXACT = EngineSettings(exact=True, sequences=6, max_context=256, threads=1)
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=42, frequency_penalty=0.3, repetition_penalty=1.1)
PARAMS = {"greedy": GREEDY, "sampled": SAMPLED}
# "The capital of France is", as SmolLM2's tokenizer cuts it.
PROMPT = (504, 3575, 282, 4649, 314)
TOKENS = 32
DEADLINE = 120.0


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2-135M-Instruct as a model directory (INT4), compiled once into the user's cache."""
    return smollm2().directory


@pytest.fixture(scope="module")
def manifest(model: Path) -> Manifest:
    return read_manifest(model)


class Stages:
    """Engines in a row with the last stage's sampler: a pipeline without its wire."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self.sampler = Sampler()

    async def step(self, *rows: Row) -> tuple[RowOutcome, ...]:
        hidden = None
        for engine in self.engines:
            hidden = engine.run(rows, hidden)
        assert hidden is not None
        return self.sampler.sample(rows, hidden)

    async def release(self, *seqs: int) -> None:
        for engine in self.engines:
            engine.release(seqs)
        self.sampler.release(seqs)


class Ring:
    """Stages behind gRPC, fed by a router of few lines."""

    def __init__(self, router: FakeRouter) -> None:
        self.router = router

    async def step(self, *rows: Row) -> tuple[RowOutcome, ...]:
        return (await self.router.step(*rows)).outcomes

    async def release(self, *seqs: int) -> None:
        await self.router.send(Release(seqs))


def row(seq: int, past_len: int, tokens: Sequence[int], params: SamplingParams, drafts: int = 0) -> Row:
    start = SequenceStart(params, len(PROMPT)) if past_len == 0 else None
    blocks = tuple(range(seq * 8, seq * 8 + 8))
    return Row(seq, 0, past_len, tuple(tokens), len(tokens) - drafts, True, slot=seq, blocks=blocks, start=start)


async def decode(stages: Stages | Ring, params: SamplingParams, seq: int = 0, total: int = TOKENS) -> list[int]:
    ids = list(PROMPT)
    (outcome,) = await stages.step(row(seq, 0, ids, params))
    while len(ids) < len(PROMPT) + total:
        ids += outcome.tokens
        (outcome,) = await stages.step(row(seq, len(ids) - 1, ids[-1:], params))
    await stages.release(seq)
    return ids[len(PROMPT) :]


@pytest.fixture(scope="module")
def expected(model: Path, manifest: Manifest) -> dict[str, list[int]]:
    """Texts of the unsplit model on the stateful engine: what everything else is compared with."""
    with closing(open_engine(EngineKind.STATEFUL, model, manifest, 0, 32, EXACT)) as engine:
        return {name: asyncio.run(decode(Stages([engine]), params)) for name, params in PARAMS.items()}


@pytest.fixture(scope="module")
def paged(model: Path, manifest: Manifest) -> Iterator[Stages]:
    with closing(open_engine(EngineKind.PAGED, model, manifest, 0, 32, EXACT)) as engine:
        yield Stages([engine])


@pytest.mark.parametrize("name", PARAMS)
async def test_paged_equals_stateful(expected: dict[str, list[int]], paged: Stages, name: str) -> None:
    assert await decode(paged, PARAMS[name]) == expected[name]


@pytest.mark.parametrize(("kind", "split"), [(EngineKind.PAGED, (0, 16, 32)), (EngineKind.STATEFUL, (0, 9, 22, 32))])
async def test_stages_over_grpc_equal_the_whole_model(
    model: Path, manifest: Manifest, expected: dict[str, list[int]], kind: EngineKind, split: tuple[int, ...]
) -> None:
    async with AsyncExitStack() as stack:
        handles = []
        for start, end in pairwise(split):

            def load(start: int = start, end: int = end) -> Engine:
                return open_engine(kind, model, manifest, start, end, EXACT)

            handles.append(await stack.enter_async_context(start_stage(load, manifest=manifest, blocks=(start, end))))
        ring = Ring(await stack.enter_async_context(open_ring(handles)))
        assert await decode(ring, GREEDY) == expected["greedy"]
        assert await decode(ring, SAMPLED, seq=1) == expected["sampled"]


@pytest.mark.parametrize("name", PARAMS)
async def test_case_p5_random_drafts_and_batch_mates_never_change_a_text(
    expected: dict[str, list[int]], paged: Stages, name: str
) -> None:
    params, dice = PARAMS[name], random.Random(3)
    truth = [*PROMPT, *expected[name]]
    texts = {seq: list(PROMPT) for seq in range(4)}
    rows = [row(seq, 0, PROMPT, params) for seq in texts]
    while any(len(ids) < len(truth) for ids in texts.values()):
        for outcome in await paged.step(*rows):
            texts[outcome.seq] += outcome.tokens
        rows = []
        for seq, ids in texts.items():
            right = truth[len(ids) : len(ids) + dice.randrange(4)]
            drafts = [*right, *(dice.randrange(49152) for _ in range(dice.randrange(3)))]
            rows.append(row(seq, len(ids) - 1, [ids[-1], *drafts], params, drafts=len(drafts)))
    await paged.release(*texts)
    assert all(ids[: len(truth)] == truth for ids in texts.values())
