"""A pipeline that is hit while it answers: real stage processes looked after as by `shoal run`, the router in this one.

The processes, their standbys, restarts and plan.json are the local runtime's (cli/local); step loop, opener and ring
are the router's, without HTTP. In the place of the router's process stands one that waits, so that the moments at which
an epoch ends and at which tokens arrive are read off one clock.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.systems.local import local_commands, local_plan
from shoal.errors import StageError
from shoal.manifest import read_manifest
from shoal.wire.messages import StageProgress, Step, StepResult
from shoal_cli.local.launch import LocalCommands
from shoal_cli.local.pipeline import LocalPipeline
from shoal_cli.local.restarts import Restarts
from shoal_router.pipeline.board import StageBoard
from shoal_router.pipeline.interface import Pipeline, PipelineFacts, PipelineOpener, Progress
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import PlanFile
from shoal_router.step_loop import StepLoop, StepLoopSettings

_log = logging.getLogger(__name__)

STREAMS = 8
CONTEXT = 256
PREFILL_CHUNK = 128
LOAD_SECONDS = 180.0
_WAITS = (
    "import signal\n"
    'for event in ("listening", "ready"):\n'
    '    print(\'{"event": "%s", "url": "http://127.0.0.1:1"}\' % event, flush=True)\n'
    "signal.pause()"
)


@dataclass(slots=True)
class Moments:
    """When epochs ended, and why; seconds of time.perf_counter."""

    lost: list[tuple[float, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, error: StageError) -> None:
        """An epoch ends now."""
        self.lost.append((time.perf_counter(), str(error)))
        self.changed.set()


@dataclass(frozen=True, slots=True)
class TimedOpener:
    """The opener under measurement; the pipelines that it opens note when they are lost."""

    inner: PipelineOpener
    moments: Moments

    @property
    def board(self) -> StageBoard:
        """See PipelineOpener.board."""
        return self.inner.board

    async def open(self, *, deadline_seconds: float, progress: Progress) -> Pipeline:
        """See PipelineOpener.open."""
        return _Timed(await self.inner.open(deadline_seconds=deadline_seconds, progress=progress), self.moments)


@dataclass(slots=True)
class _Timed:
    _inner: Pipeline
    _moments: Moments
    _noted: bool = False

    @property
    def facts(self) -> PipelineFacts:
        return self._inner.facts

    @property
    def progress(self) -> tuple[StageProgress, ...]:
        return self._inner.progress

    def submit(self, step: Step) -> None:
        self._inner.submit(step)

    def release(self, seqs: Sequence[int]) -> None:
        self._inner.release(seqs)

    async def result(self) -> StepResult:
        try:
            return await self._inner.result()
        except StageError as error:
            if not self._noted:
                self._noted = True
                self._moments.note(error)
            raise

    async def close(self) -> None:
        self._noted = True
        await self._inner.close()


@dataclass(slots=True)
class Survivor:
    """What a benchmark hits and watches."""

    local: LocalPipeline
    steps: StepLoop
    moments: Moments

    async def whole(self) -> None:
        """Wait until every process is back and the router's pipeline is open."""
        async with asyncio.timeout(LOAD_SECONDS):
            while not all(seat.ready for seat in self.local.stages):  # noqa: ASYNC110 - another process loads
                await asyncio.sleep(0.02)
        await self.steps.wait_ready(LOAD_SECONDS)


@dataclass(frozen=True, slots=True)
class _Commands(LocalCommands):
    """The stages' command lines, and a process that waits in the router's place."""

    def router(self, plan: Path, port: int | None = None, draft_address: str | None = None) -> list[str]:
        del plan, port, draft_address
        return [sys.executable, "-S", "-c", _WAITS]


@asynccontextmanager
async def survivor(model: Path, folder: Path, stages: int, standbys: int) -> AsyncIterator[Survivor]:
    """Started and open; whatever the body does to it, no process is left."""
    plan = local_plan(read_manifest(model), stages, standbys, streams=STREAMS, max_context=CONTEXT)
    commands = local_commands(
        model,
        kind=_Commands,
        streams=STREAMS,
        max_context=CONTEXT,
        prefill_chunk=PREFILL_CHUNK,
        exact=True,
    )
    moments = Moments()
    # Processes are hit every few seconds here, which is no sign that they are broken: no pauses between restarts.
    async with LocalPipeline(
        plan, commands, folder, LOAD_SECONDS, restarts=lambda: Restarts(longest_pause=0.0)
    ) as local:
        await local.start()
        watching = asyncio.create_task(local.watch(_log.info))
        opener = TimedOpener(RingOpener(PlanFile(local.stages.path), PREFILL_CHUNK), moments)
        steps = StepLoop(opener, StepLoopSettings(prefill_chunk=PREFILL_CHUNK))
        await steps.start()
        try:
            await steps.wait_ready(LOAD_SECONDS)
            yield Survivor(local, steps, moments)
        finally:
            await steps.stop()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
