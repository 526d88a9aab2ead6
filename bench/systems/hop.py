"""Rings of real stage servers whose engine computes nothing: what is left of a step's time is its hops.

    python -m bench.systems.hop WIDTH CORES              the worker: rings of 1 and 3 stages, and the router's end
    python -m bench.systems.hop stage WIDTH INDEX COUNT  one stage of a ring, as a process of its own

Requests: {"stages": 1 or 3, "rows": r, "steps": n} -> {"seconds": [each step's time from submit to result]}. One step
is in flight at a time, as for one user. The stages are pinned to the cores in turn, so that every hop leaves its core.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import uvloop
from numpy.typing import NDArray

from bench.workers import Message, answer
from shoal.logs import announce
from shoal.manifest import Manifest
from shoal.parent import die_with_parent
from shoal.wire.messages import KvCapacity, Row, SamplingParams, SequenceStart, Step
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.interface import Pipeline
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_stage.engine.fake import fake_manifest
from shoal_stage.engine.interface import EngineInfo
from shoal_stage.server.fake import start_stage

RINGS = (1, 3)
VOCABULARY = 256
PAST = 512
"""Tokens that each sequence has behind it: its block table travels with every row."""

_BLOCK, _CONTEXT, _SEQUENCES = 32, 1 << 20, 16


class IdleEngine:
    """See Engine. Gives the same array whatever comes in: not a copy, not a multiplication."""

    def __init__(self, width: int, last: bool) -> None:
        self._hidden = np.random.default_rng(0).standard_normal((_SEQUENCES, width), np.float32)
        self._logits = np.zeros((_SEQUENCES, VOCABULARY), np.float32)
        self._last = last
        self.info = EngineInfo(
            engine="idle",
            device="CPU",
            execution_devices=("CPU",),
            exact=False,
            hidden_size=width,
            vocab_size=VOCABULARY,
            fused_attention=0,
            versions={},
        )
        self.capacity = KvCapacity(
            sequences=_SEQUENCES,
            blocks=_CONTEXT // _BLOCK,
            block_size=_BLOCK,
            max_context=_CONTEXT,
            bytes=0,
            shares_blocks=True,
        )

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        del hidden
        return (self._logits if self._last else self._hidden)[: len(rows)]

    def release(self, seqs: Sequence[int]) -> None:
        """See Engine.release: nothing is held."""

    def close(self) -> None:
        """See Engine.close."""


def decode_rows(count: int, past: int, *, first: bool) -> tuple[Row, ...]:
    """One token of each of `count` greedy sequences at position `past`."""
    start = SequenceStart(SamplingParams(temperature=0.0), PAST) if first else None
    table = tuple(range(past // _BLOCK + 1))
    return tuple(Row(seq, 0, past, (7,), known=1, sample=True, blocks=table, start=start) for seq in range(count))


def manifest_of(width: int, stages: int) -> Manifest:
    """A model with one layer a stage."""
    manifest = fake_manifest(layers=stages, vocab_size=VOCABULARY, max_context=_CONTEXT)
    return manifest.model_copy(update={"shape": manifest.shape.model_copy(update={"hidden_size": width})})


def blocks_of(index: int, stages: int) -> tuple[int, int]:
    """One layer each; the embedding is the first stage's, the head the last one's."""
    return 0 if index == 0 else index + 1, stages + 2 if index + 1 == stages else index + 2


async def serve(width: int, index: int, stages: int) -> None:
    """Be one stage until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    engine = partial(IdleEngine, width, index + 1 == stages)
    blocks = blocks_of(index, stages)
    async with start_stage(engine, manifest=manifest_of(width, stages), blocks=blocks) as stage:
        announce("listening", address=stage.address)
        await stopped.wait()


class Rings:
    """The rings of one width, open for as long as this process lives."""

    def __init__(self, width: int, cores: list[int]) -> None:
        self._loop = uvloop.new_event_loop()
        self._pipelines = {stages: self._loop.run_until_complete(_open(width, stages, cores)) for stages in RINGS}

    def measure(self, request: Message) -> Message:
        """Steps one after the other."""
        pipeline = self._pipelines[request["stages"]]
        return {"seconds": self._loop.run_until_complete(self._steps(pipeline, request["rows"], request["steps"]))}

    async def _steps(self, pipeline: Pipeline, rows: int, steps: int) -> list[float]:
        pipeline.release(range(rows))
        seconds = []
        for number in range(steps):
            step = Step(decode_rows(rows, PAST + number, first=number == 0))
            begun = time.perf_counter()
            pipeline.submit(step)
            await pipeline.result()
            seconds.append(time.perf_counter() - begun)
        return seconds


async def _open(width: int, stages: int, cores: list[int]) -> Pipeline:
    processes = [_start(width, index, stages, cores[index % len(cores)]) for index in range(stages)]
    addresses = [json.loads(process.stdout.readline())["address"] for process in processes if process.stdout]
    ranges = [blocks_of(index, stages) for index in range(stages)]
    plan = planned_at(addresses, ranges, manifest_of(width, stages).digest)
    return await RingOpener(FixedPlan(plan)).open(deadline_seconds=60, progress=lambda _: None)


def _start(width: int, index: int, stages: int, core: int) -> subprocess.Popen[str]:
    command = ["taskset", "-c", str(core), sys.executable, "-m", "bench.systems.hop", "stage"]
    command += [str(width), str(index), str(stages)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if sys.argv[1] == "stage":
        die_with_parent()
        uvloop.run(serve(*map(int, sys.argv[2:])))
    else:
        answer(Rings(int(sys.argv[1]), [int(core) for core in sys.argv[2].split(",")]).measure)
