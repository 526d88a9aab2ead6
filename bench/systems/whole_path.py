"""Our whole path without HTTP: scheduler, step loop, gRPC ring, stage processes, sampler, text.

    python -m bench.systems.whole_path MODEL_DIR STAGE_CORES [--layers N,N,…] [--prefill-chunk N] [--no-prefix-cache]
                                       [--delay-ms D] [--jitter-ms J] [options of python -m shoal_stage serve …]

Stages are the processes that a pod would run (`python -m shoal_stage serve`), one for each comma-separated entry of
STAGE_CORES, pinned to that core; `--layers` says how many each one has, else the planner cuts. The router's part runs
in this process on the cores that it was started on. With a delay, a relay (bench.relay) stands before each stage: every
hop, and the way back from the last stage to the router, takes that long.

Requests: {"prompts": [ids, …], "tokens": n} -> {"seconds", "answers", "sent_s", "arrivals_s", "bytes_back", "timings"}.
`tokens` may be a list, one count a prompt. All prompts begin at once; with "after": k the first one begins alone, and
the others when it has k tokens. `sent_s` has the moment at which each prompt was sent, `arrivals_s` those at which its
tokens came, in seconds from the beginning.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.link import Link
from bench.relay import Relay
from bench.systems.cut import cut_blocks
from bench.workers import Message, answer
from shoal.manifest import Manifest, read_manifest
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.answer import AnswerText
from shoal_router.text.model import load_text_model


@dataclass(slots=True)
class _User:
    """One prompt and what came of it."""

    prompt: list[int]
    tokens: int
    ids: list[int] = field(default_factory=list)
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)


class Pipeline:
    """Stage processes and the step loop over them."""

    def __init__(
        self,
        directory: Path,
        cores: list[int],
        layers: tuple[int, ...],
        link: Link | None,
        settings: StepLoopSettings,
        options: list[str],
    ) -> None:
        self._text = load_text_model(directory)
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        manifest = read_manifest(directory)
        ranges = cut_blocks(manifest, len(cores), layers)
        processes = [_start_stage(directory, blocks, core, options) for blocks, core in zip(ranges, cores, strict=True)]
        addresses = [json.loads(process.stdout.readline())["address"] for process in processes if process.stdout]
        self._relays = [] if link is None else [Relay(address, link) for address in addresses]
        self._steps = self._call(self._open(manifest, ranges, addresses, settings)).result(180)

    async def _open(
        self, manifest: Manifest, ranges: list[tuple[int, int]], addresses: list[str], settings: StepLoopSettings
    ) -> StepLoop:
        if self._relays:
            addresses = [(await relay.__aenter__()).address for relay in self._relays]
        planned = planned_at(addresses, ranges, manifest.digest)
        steps = StepLoop(RingOpener(FixedPlan(planned), settings.prefill_chunk), settings)
        await steps.start()
        await steps.wait_ready(120)
        return steps

    def generate(self, request: Message) -> Message:
        """Run the prompts, one user each."""
        counts = request["tokens"]
        if isinstance(counts, int):
            counts = [counts] * len(request["prompts"])
        users = [_User(prompt, tokens) for prompt, tokens in zip(request["prompts"], counts, strict=True)]
        back = self._bytes_back()
        begun = time.perf_counter()
        self._call(self._run_all(users, request.get("after", 0))).result(900)
        return {
            "seconds": time.perf_counter() - begun,
            "answers": [user.ids for user in users],
            "sent_s": [user.sent - begun for user in users],
            "arrivals_s": [[at - begun for at in user.arrivals] for user in users],
            "bytes_back": self._bytes_back() - back,
            "timings": [
                [timing.compute_us, timing.queue_us, timing.idle_us, timing.send_us]
                for timing in self._steps.status().timings
            ],
        }

    async def _run_all(self, users: list[_User], after: int) -> None:
        reached = asyncio.Event()
        first, *others = users
        if not after:
            reached.set()

        async def late(user: _User) -> None:
            await reached.wait()
            await self._one(user)

        await asyncio.gather(self._one(first, after, reached), *(late(user) for user in others))

    async def _one(self, user: _User, after: int = 0, reached: asyncio.Event | None = None) -> None:
        user.sent = time.perf_counter()
        text = AnswerText(self._text.detokenizer(begins_text=False), (), frozenset())
        request = GenerationRequest("bench", tuple(user.prompt), SamplingParams(temperature=0.0), user.tokens)
        async for delta in self._steps.generate(request):
            user.arrivals += [time.perf_counter()] * len(delta.tokens)
            user.ids += delta.tokens
            text.push(delta)
            if reached is not None and len(user.ids) >= after:
                reached.set()

    def _bytes_back(self) -> int:
        """What came back from the last stage so far; 0 without relays, which count it."""
        return self._relays[-1].traffic.back if self._relays else 0

    def _call(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _start_stage(directory: Path, blocks: tuple[int, int], core: int, options: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal_stage", "serve", "--model", str(directory)]
    command += ["--blocks", f"{blocks[0]}:{blocks[1]}", "--listen", "127.0.0.1:0", "--threads", "1"]
    pinned = ["taskset", "-c", str(core), *command, "--die-with-parent", *options]
    return subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True)


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
    given, options = parser.parse_known_args(argv)
    settings = StepLoopSettings(prefill_chunk=given.prefill_chunk, prefix_cache=not given.no_prefix_cache)
    link = Link(delay=given.delay_ms / 1000, jitter=given.jitter_ms / 1000) if given.delay_ms else None
    answer(Pipeline(given.directory, given.cores, given.layers, link, settings, options).generate)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main(sys.argv[1:])
