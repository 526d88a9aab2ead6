"""Our whole path without HTTP: scheduler, step loop, gRPC ring, stage processes, sampler, text.

    python -m bench.systems.whole_path MODEL_DIR STAGE_CORES [serve options …]

Stages are the processes that a pod would run (`python -m shoal_stage serve`), one for each comma-separated entry of
STAGE_CORES, pinned to that core; the router's part runs in this process on the cores that it was started on.
Requests: {"prompts": [ids, …], "tokens": n} -> {"seconds", "answers", "ttft_s", "timings"}, all prompts at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

from bench.workers import Message, answer
from shoal.manifest import Manifest, read_manifest
from shoal.plan.document import Device, MemorySum, PipelinePlan, StagePlan
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan, PlannedPipeline
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.answer import AnswerText
from shoal_router.text.model import load_text_model


def even_split(blocks: int, stages: int) -> list[tuple[int, int]]:
    """Ranges of as many blocks each, whatever they cost."""
    cuts = [round(blocks * index / stages) for index in range(stages + 1)]
    return list(pairwise(cuts))


class Pipeline:
    """Stage processes and the step loop over them."""

    def __init__(self, directory: Path, cores: list[int], options: list[str]) -> None:
        self._text = load_text_model(directory)
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        manifest = read_manifest(directory)
        ranges = even_split(len(manifest.blocks), len(cores))
        processes = [_start_stage(directory, blocks, core, options) for blocks, core in zip(ranges, cores, strict=True)]
        addresses = [json.loads(process.stdout.readline())["address"] for process in processes if process.stdout]
        self._steps = self._call(self._open(manifest, ranges, addresses)).result(180)

    async def _open(self, manifest: Manifest, ranges: list[tuple[int, int]], addresses: list[str]) -> StepLoop:
        nothing = MemorySum(weights=0, load_peak=0, kv=0, runtime=0)
        stages = tuple(
            StagePlan(
                index=index,
                node="bench",
                device=Device.CPU,
                block_start=start,
                block_end=end,
                memory=nothing,
                address=address,
            )
            for index, ((start, end), address) in enumerate(zip(ranges, addresses, strict=True))
        )
        planned = PlannedPipeline(PipelinePlan(index=0, stages=stages), manifest.digest)
        steps = StepLoop(RingOpener(FixedPlan(planned)), StepLoopSettings())
        await steps.start()
        await steps.wait_ready(120)
        return steps

    def generate(self, request: Message) -> Message:
        """Run the prompts all at once, one user each."""
        begun = time.perf_counter()
        answers = self._call(self._run_all(request)).result(900)
        return {
            "seconds": time.perf_counter() - begun,
            "answers": [ids for ids, _ in answers],
            "ttft_s": [first for _, first in answers],
            "timings": [
                [timing.compute_us, timing.queue_us, timing.idle_us, timing.send_us]
                for timing in self._steps.status().timings
            ],
        }

    async def _run_all(self, request: Message) -> list[tuple[list[int], float]]:
        return await asyncio.gather(*(self._one(prompt, request["tokens"]) for prompt in request["prompts"]))

    async def _one(self, prompt: list[int], tokens: int) -> tuple[list[int], float]:
        ids: list[int] = []
        first = 0.0
        begun = time.perf_counter()
        text = AnswerText(self._text.detokenizer(begins_text=False), (), frozenset())
        request = GenerationRequest("bench", tuple(prompt), SamplingParams(temperature=0.0), tokens)
        async for delta in self._steps.generate(request):
            first = first or time.perf_counter() - begun
            ids.extend(delta.tokens)
            text.push(delta)
        return ids, first

    def _call(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _start_stage(directory: Path, blocks: tuple[int, int], core: int, options: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal_stage", "serve", "--model", str(directory)]
    command += ["--blocks", f"{blocks[0]}:{blocks[1]}", "--listen", "127.0.0.1:0", "--threads", "1"]
    pinned = ["taskset", "-c", str(core), *command, "--die-with-parent", *options]
    return subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    answer(Pipeline(Path(sys.argv[1]), [int(core) for core in sys.argv[2].split(",")], sys.argv[3:]).generate)
