"""One router over several pipelines, all real processes with SmolLM2 in exact mode: what an answer says does not depend
on which pipelines there are, which computes it, and which are lost on the way.

The two pipelines are cut differently, so that an answer that moves really is computed by other stages.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.models import smollm2
from shoal.manifest import read_manifest
from shoal.parent import STARTER
from shoal.plan.document import PipelinePlan, Plan
from shoal_cli.local.process import ManagedProcess
from shoal_router.pipeline.fake import planned_at
from shoaltest.waiting import until_elsewhere

CUTS = ((0, 13, 32), (0, 32))
LOAD_SECONDS = 90.0
SECONDS = 60.0
TOKENS = 100

ASKED = [
    {"prompt": "The capital of France is", "temperature": 0, "logprobs": 2},
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 7, "frequency_penalty": 0.4},
    {"prompt": "One, two, three,", "temperature": 0.8, "seed": 8, "presence_penalty": 0.6, "top_p": 0.9},
    {"prompt": "The colours of the rainbow are", "temperature": 0, "repetition_penalty": 1.2},
]


@dataclass
class Answer:
    """What a client got of one streamed completion."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    def same_as(self, other: Answer) -> None:
        """Fails unless the client of `other` was told the same."""
        assert (self.text, self.tokens, self.finish) == (other.text, other.tokens, other.finish)
        for name in ("prompt_tokens", "completion_tokens"):
            assert self.usage[name] == other.usage[name]
        # Differently cut chunks of a prompt may round the last bit of a score differently.
        assert self.scores == pytest.approx(other.scores, abs=1e-4)


class Office:
    """Two pipelines, and a router whose plan names the ones that a test wants."""

    def __init__(self, model: Path, directory: Path, stack: AsyncExitStack) -> None:
        self.model = model
        self.digest = read_manifest(model).digest
        self.plan = directory / "plan.json"
        self.pipelines: list[list[ManagedProcess]] = []
        self._planned: list[PipelinePlan] = []
        self._directory = directory
        self._stack = stack

    async def start(self, name: str, *argv: str) -> ManagedProcess:
        env = {**os.environ, STARTER: str(os.getpid())}
        log = self._directory / f"{name}.log"
        process = ManagedProcess(name, [sys.executable, "-P", "-m", *argv, "--die-with-parent"], log, env)
        self._stack.push_async_callback(process.stop, 5.0)
        await process.start()
        return process

    async def start_pipelines(self) -> None:
        for number, cut in enumerate(CUTS):
            ranges = list(pairwise(cut))
            stages = [
                await self.start(
                    f"stage-{number}-{start}",
                    "shoal_stage",
                    "serve",
                    f"--model={self.model}",
                    f"--blocks={start}:{end}",
                    "--listen=127.0.0.1:0",
                    "--streams=8",
                    "--max-context=256",
                    "--threads=1",
                    "--exact",
                )
                for start, end in ranges
            ]
            addresses = [str((await stage.event("listening", LOAD_SECONDS))["address"]) for stage in stages]
            self.pipelines.append(stages)
            self._planned.append(PipelinePlan(index=number, stages=planned_at(addresses, ranges, None).stages.stages))
        for stages in self.pipelines:
            for stage in stages:
                await stage.event("ready", LOAD_SECONDS)

    def write_plan(self, count: int) -> None:
        """Name the first `count` pipelines, complete or not at all."""
        plan = Plan(model_digest=self.digest, pipelines=tuple(self._planned[:count]))
        fresh = self.plan.with_suffix(".new")
        fresh.write_text(plan.model_dump_json(by_alias=True))
        fresh.replace(self.plan)

    async def router(self) -> httpx.AsyncClient:
        router = await self.start(
            "router",
            "shoal_router",
            f"--plan={self.plan}",
            f"--model={self.model}",
            "--listen=127.0.0.1:0",
            "--served-name=m",
            "--prefill-chunk=64",
        )
        url = str((await router.event("listening", LOAD_SECONDS))["url"])
        await router.event("ready", LOAD_SECONDS)
        return await self._stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120, trust_env=False))


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2-135M-Instruct as a model directory (INT4), compiled once into the user's cache."""
    return smollm2().directory


@pytest.fixture
async def office(model: Path, tmp_path: Path) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        office = Office(model, tmp_path, stack)
        await office.start_pipelines()
        yield office


async def ask(client: httpx.AsyncClient, asked: dict[str, Any], answer: Answer) -> Answer:
    """Stream one completion into `answer`. Anything but an undisturbed stream fails."""
    body = {"model": "m", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    body |= {"stream_options": {"include_usage": True}} | asked
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line async for line in _data(response, answer)]
    assert lines[-1] == "[DONE]"
    return answer


async def _data(response: httpx.Response, answer: Answer) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data != "[DONE]":
            chunk = json.loads(data)
            assert "error" not in chunk, chunk
            answer.usage = chunk.get("usage") or answer.usage
            for choice in chunk["choices"]:
                answer.text += choice["text"]
                answer.finish = choice["finish_reason"] or answer.finish
                scores = choice.get("logprobs") or {"tokens": [], "token_logprobs": []}
                answer.tokens += scores["tokens"]
                answer.scores += scores["token_logprobs"]
        yield data


async def status(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/status")).json()
    return found


async def ready_pipelines(client: httpx.AsyncClient) -> list[bool]:
    return [pipeline["ready"] for pipeline in (await status(client))["pipelines"]]


def begin(client: httpx.AsyncClient) -> tuple[list[Answer], list[asyncio.Task[Answer]]]:
    answers = [Answer() for _ in ASKED]
    return answers, [asyncio.create_task(ask(client, each, into)) for each, into in zip(ASKED, answers, strict=True)]


async def test_pipelines_come_go_and_die_under_load_and_no_client_notices(office: Office) -> None:
    office.write_plan(1)
    client = await office.router()
    undisturbed = [await ask(client, each, Answer()) for each in ASKED]
    assert all(answer.usage["completion_tokens"] == TOKENS for answer in undisturbed)

    async def check(tasks: Sequence[asyncio.Task[Answer]], expected: Sequence[Answer]) -> None:
        async with asyncio.timeout(SECONDS):
            for answer, other in zip(await asyncio.gather(*tasks), expected, strict=True):
                answer.same_as(other)

    async def both_work() -> bool:
        return [pipeline["running"] > 0 for pipeline in (await status(client))["pipelines"]] == [True, True]

    async def is_one() -> bool:
        return await ready_pipelines(client) == [True]

    async def are_two() -> bool:
        return await ready_pipelines(client) == [True, True]

    # From one to two to one, with answers under way all the time.
    _, early = begin(client)
    office.write_plan(2)
    await until_elsewhere(are_two, SECONDS)
    late_answers, late = begin(client)
    await until_elsewhere(both_work, SECONDS)
    office.write_plan(1)
    await until_elsewhere(is_one, SECONDS)
    assert any(answer.finish is None for answer in late_answers), "too late: nothing was under way any more"
    await check([*early, *late], [*undisturbed, *undisturbed])
    assert (await status(client))["running"] == 0

    # A stage dies in mid-answer, and nothing starts it again.
    office.write_plan(2)
    await until_elsewhere(are_two, SECONDS)
    answers, tasks = begin(client)
    await until_elsewhere(both_work, SECONDS)

    async def all_have_begun() -> bool:
        return all(answer.text for answer in answers)

    await until_elsewhere(all_have_begun, SECONDS)
    lost, epochs = 0, [pipeline["epoch"] for pipeline in (await status(client))["pipelines"]]
    office.pipelines[lost][1].kill()
    await check(tasks, undisturbed)
    after = await status(client)
    assert [pipeline["ready"] for pipeline in after["pipelines"]] == [False, True]
    assert after["pipelines"][1]["epoch"] == epochs[1], "the other one was not disturbed"
    assert "pipeline 0: " in after["detail"]
    assert (await client.get("/health/ready")).status_code == 200
    await check([asyncio.create_task(ask(client, ASKED[1], Answer()))], [undisturbed[1]])
