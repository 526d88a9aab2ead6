"""Our whole path without HTTP: scheduler, step loop, gRPC ring, stage processes, sampler, text.

    python -m bench.systems.whole_path MODEL_DIR STAGE_CORES [--layers N,N,…] [--prefill-chunk N] [--no-prefix-cache]
                                       [--speculative-mode Auto|Fixed] [--speculative-max-tokens K] [--max-chunks N]
                                       [--draft MODEL_DIR] [--draft-waits] [--delay-ms D] [--jitter-ms J]
                                       [options of python -m shoal_stage serve …]

Stages are the processes that a pod would run (`python -m shoal_stage serve`), one for each comma-separated entry of
STAGE_CORES, pinned to that core; `--layers` says how many each one has, else the planner cuts. The router's part runs
in this process on the cores that it was started on. With a delay, a relay (bench.relay) stands before each stage: every
hop, and the way back from the last stage to the router, takes that long.

With `--speculative-mode` drafts come from the text, with `--draft` from that model, too, in a process of its own which
may run on all cores that this one may. With `--draft-waits` they come from the model alone, and each step waits until
it has said as many as it may (bench.systems.synchronous_draft).

Requests: {"prompts": [ids, …], "tokens": n} -> {"seconds", "answers", "sent_s", "arrivals_s", "bytes_back", "timings",
"drafts": {source: [verified, accepted]}, "proposed": {source: sent}}. `tokens` may be a list, one count a prompt. All
prompts begin at once; with "after": k the first one begins alone, and the others when it has k tokens; with
"stall_s": s every relay stands still for s seconds when it has 8. With "speculation": {"mode", "max_tokens",
"max_chunks"} a router with these settings takes the ring over first; with "delay_ms": d each relay has that delay from
then on; with "grammar": g every answer follows it. `sent_s` has the moment at which each prompt was sent, `arrivals_s`
those at which its tokens came, in seconds from the beginning; `bytes_back` counts what came back from the last stage
through a relay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from bench.link import Link
from bench.relay import Relay
from bench.systems.cut import cut_blocks
from bench.systems.routers import Routers
from bench.workers import Message, answer
from shoal.errors import ResourceError
from shoal.manifest import read_manifest
from shoal.resource import SpeculativeMode
from shoal.vocabulary import read_vocabulary
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.answer import AnswerText
from shoal_router.text.model import load_text_model

_STALL_AFTER = 8
"""Tokens of the first user."""


@dataclass(slots=True)
class _User:
    """One prompt and what came of it."""

    prompt: list[int]
    tokens: int
    grammar: str = ""
    ids: list[int] = field(default_factory=list)
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def has(self, tokens: int) -> None:
        """Wait until so many tokens came."""
        while len(self.ids) < tokens:
            self.more.clear()
            await self.more.wait()


class Pipeline:
    """Stage processes and the step loop over them."""

    def __init__(
        self,
        directory: Path,
        cores: list[int],
        layers: tuple[int, ...],
        link: Link | None,
        settings: StepLoopSettings,
        draft: Path | None,
        draft_waits: bool,
        options: list[str],
    ) -> None:
        self._text = load_text_model(directory)
        self._groups = count()
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        manifest = read_manifest(directory)
        ranges = cut_blocks(manifest, len(cores), layers)
        processes = [_start_stage(directory, blocks, core, options) for blocks, core in zip(ranges, cores, strict=True)]
        addresses = [json.loads(process.stdout.readline())["address"] for process in processes if process.stdout]
        self._relays = [] if link is None else [Relay(address, link) for address in addresses]
        address = None if draft is None else _start_draft(draft, options)
        vocabulary = read_vocabulary(directory, manifest)
        if self._relays:
            addresses = self._call(self._open_relays()).result(30)
        opener = RingOpener(FixedPlan(planned_at(addresses, ranges, manifest.digest)), settings.prefill_chunk)
        self._routers = Routers(opener, settings, draft_address=address, draft_waits=draft_waits, vocabulary=vocabulary)
        self._steps = self._use(settings.speculation)

    async def _open_relays(self) -> list[str]:
        return [(await relay.__aenter__()).address for relay in self._relays]

    def _use(self, speculation: SpeculationSettings) -> StepLoop:
        return self._call(self._routers.use(speculation)).result(360)

    def generate(self, request: Message) -> Message:
        """Run the prompts, one user each."""
        counts = request["tokens"]
        if isinstance(counts, int):
            counts = [counts] * len(request["prompts"])
        grammar = request.get("grammar", "")
        users = [_User(prompt, tokens, grammar) for prompt, tokens in zip(request["prompts"], counts, strict=True)]
        delay = request.get("delay_ms")
        if "speculation" in request:
            if delay is not None:
                # Opening takes many round trips, and none of them is measured.
                self._call(self._delay(0.0)).result(10)
            asked = request["speculation"]
            self._steps = self._use(SpeculationSettings(**{**asked, "mode": SpeculativeMode(asked["mode"])}))
        if delay is not None:
            self._call(self._delay(delay / 1000)).result(10)
        back, drafts, proposed = self._bytes_back(), self._drafts(), self._proposed()
        begun = time.perf_counter()
        self._call(self._run_all(users, request.get("after", 0), request.get("stall_s", 0.0))).result(900)
        seconds = time.perf_counter() - begun
        self._routers.check()
        return {
            "seconds": seconds,
            "answers": [user.ids for user in users],
            "sent_s": [user.sent - begun for user in users],
            "arrivals_s": [[at - begun for at in user.arrivals] for user in users],
            "bytes_back": self._bytes_back() - back,
            "drafts": {
                source: [now - before for now, before in zip(counts, drafts.get(source, (0, 0)), strict=True)]
                for source, counts in self._drafts().items()
            },
            "proposed": {source: now - proposed.get(source, 0) for source, now in self._proposed().items()},
            "timings": [
                [timing.compute_us, timing.queue_us, timing.idle_us, timing.send_us]
                for timing in self._steps.status().timings
            ],
        }

    async def _run_all(self, users: list[_User], after: int, stall_seconds: float) -> None:
        first, *others = users

        async def late(user: _User) -> None:
            await first.has(after)
            await self._one(user)

        async def stall() -> None:
            await first.has(_STALL_AFTER)
            for relay in self._relays:
                relay.stall(stall_seconds)

        await asyncio.gather(self._one(first), *(late(user) for user in others), *([stall()] if stall_seconds else []))

    async def _one(self, user: _User) -> None:
        user.sent = time.perf_counter()
        text = AnswerText(self._text.detokenizer(begins_text=False), (), frozenset())
        # Each user is a stranger to all others: nobody drafts from the answers of the round before.
        group = str(next(self._groups))
        params = SamplingParams(temperature=0.0, grammar=user.grammar)
        request = GenerationRequest("bench", tuple(user.prompt), params, user.tokens, group=group)
        async for delta in self._steps.generate(request):
            user.arrivals += [time.perf_counter()] * len(delta.tokens)
            user.ids += delta.tokens
            text.push(delta)
            user.more.set()

    def _bytes_back(self) -> int:
        """What came back from the last stage so far; 0 without relays, which count it."""
        return self._relays[-1].traffic.back if self._relays else 0

    def _drafts(self) -> dict[str, tuple[int, int]]:
        """Drafted ids that were verified and accepted so far, by source."""
        sources = self._steps.speculation.sources
        return {source: (stats.verified, stats.accepted) for source, stats in sources.items()}

    def _proposed(self) -> dict[str, int]:
        """Drafted ids that were sent so far, by source."""
        return {source: stats.proposed for source, stats in self._steps.speculation.sources.items()}

    async def _delay(self, seconds: float) -> None:
        for relay in self._relays:
            relay.link = replace(relay.link, delay=seconds)

    def _call(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _start_stage(directory: Path, blocks: tuple[int, int], core: int, options: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal_stage", "serve", "--model", str(directory)]
    command += ["--blocks", f"{blocks[0]}:{blocks[1]}", "--listen", "127.0.0.1:0", "--threads", "1"]
    pinned = ["taskset", "-c", str(core), *command, "--die-with-parent", *options]
    return subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True)


def _start_draft(directory: Path, options: list[str]) -> str:
    command = [sys.executable, "-m", "shoal_stage", "draft", "--model", str(directory), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--die-with-parent", *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    # It refuses routers until it is ready.
    for line in process.stdout:
        said = json.loads(line)
        if said["event"] == "ready":
            address: str = said["address"]
            return address
    raise ResourceError("the draft process ended before it was ready: its messages stand above")


def main(argv: list[str]) -> None:
    """Serve generate requests."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("directory", type=Path)
    parser.add_argument("cores", type=lambda text: [int(core) for core in text.split(",")])
    parser.add_argument("--layers", type=lambda text: tuple(map(int, text.split(","))), default=())
    parser.add_argument("--prefill-chunk", type=int, default=StepLoopSettings().prefill_chunk)
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--speculative-mode", type=SpeculativeMode, default=SpeculativeMode.OFF)
    parser.add_argument("--speculative-max-tokens", type=int, default=SpeculationSettings().max_tokens)
    parser.add_argument("--max-chunks", type=int, default=0)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--draft-waits", action="store_true")
    given, options = parser.parse_known_args(argv)
    settings = StepLoopSettings(
        prefill_chunk=given.prefill_chunk,
        prefix_cache=not given.no_prefix_cache,
        speculation=SpeculationSettings(given.speculative_mode, given.speculative_max_tokens, given.max_chunks),
    )
    link = Link(delay=given.delay_ms / 1000, jitter=given.jitter_ms / 1000) if given.delay_ms else None
    pipeline = Pipeline(
        given.directory, given.cores, given.layers, link, settings, given.draft, given.draft_waits, options
    )
    answer(pipeline.generate)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main(sys.argv[1:])
