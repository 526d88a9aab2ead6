"""The compute thread of a stage: runs accepted frames one after the other, in the order they came (see thread.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from shoal.errors import StageError
from shoal.patience import StepPatience
from shoal.wire.codec import encode_result, forward_step
from shoal.wire.errors import StageFailed
from shoal.wire.messages import DType, Frame, Release, StageTiming, Step, StepResult
from shoal.wire.stage_pb2 import Frame as FrameMessage
from shoal.wire.stage_pb2 import StepResult as ResultMessage
from shoal_stage.engine.interface import Engine
from shoal_stage.sample.sampler import Sampler
from shoal_stage.server.spans import StageSpans
from shoal_stage.server.thread import EngineThread, Listener

Outgoing = FrameMessage | ResultMessage | None
"""What leaves the stage for one frame; None where the ring ends with nothing to say (a release on the last stage)."""


@dataclass(slots=True)
class Work:
    """One epoch as the compute thread sees it. `over` is set by the event loop; its frames are dropped from then on.

    `seqs` are the sequences that hold memory for this epoch: the compute thread's own, since what the event loop
    accepted (a release, say) may have been dropped. `send_us` is what the outlet last measured, only to be reported.
    """

    epoch: int
    stage_index: int
    hidden_dtype: DType
    sampler: Sampler | None
    over: bool = False
    send_us: int = 0
    seqs: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Run:
    work: Work
    frame: Frame
    message: FrameMessage
    arrived: float


@dataclass(frozen=True, slots=True)
class _Free:
    work: Work


@dataclass(frozen=True, slots=True)
class _Mark:
    reached: asyncio.Event


class StepListener(Listener, Protocol):
    """Who hears of what the thread did. All calls are made on the event loop."""

    def finished(self, work: Work, message: Outgoing) -> None:
        """A frame is done; `message` goes to the next hop or to the router."""
        ...

    def broken(self, work: Work, error: StageError) -> None:
        """A frame could not be run: its epoch is over, the stage is not."""
        ...


class ComputeThread(EngineThread["_Run | _Free | _Mark"]):
    """See EngineThread."""

    def __init__(
        self, load: Callable[[], Engine], listener: StepListener, patience: StepPatience, spans: StageSpans
    ) -> None:
        super().__init__(load, listener)
        self._spans = spans
        self._listener = listener
        self._patience = patience
        self._allowed = patience.allowed(0)
        self._held = 0

    @property
    def held(self) -> int:
        """Sequences that hold memory in the engine, of every epoch; written by the thread, read by anyone."""
        return self._held

    def allowed_seconds(self) -> float:
        """How long the step in hand may take: by what the steps before it took."""
        return self._allowed

    def submit(self, work: Work, frame: Frame, message: FrameMessage) -> None:
        """Queue an accepted frame; `message` is what it was decoded from, and goes on to the next hop."""
        self._inbox.put(_Run(work, frame, message, time.perf_counter()))

    def free(self, work: Work) -> None:
        """Queue the release of all that an epoch that is over still holds."""
        self._inbox.put(_Free(work))

    async def settled(self, timeout: float) -> None:
        """Wait until everything queued so far is done or dropped; give up after `timeout` seconds."""
        mark = _Mark(asyncio.Event())
        self._inbox.put(mark)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await mark.reached.wait()

    def _serve(self, engine: Engine) -> None:
        ended = time.perf_counter()
        while (job := self._inbox.get()) is not None and not self._stopping:
            if isinstance(job, _Free):
                engine.release(tuple(job.work.seqs))
                self._spans.over(job.work.seqs, stage=job.work.stage_index)
                self._held -= len(job.work.seqs)
                job.work.seqs.clear()
            elif isinstance(job, _Mark):
                self._tell(job.reached.set)
            elif not job.work.over:
                started = time.perf_counter()
                tokens = _tokens(job.frame)
                self._allowed = self._patience.allowed(tokens)
                self._busy_since = started
                try:
                    message = self._run(engine, job, started, idle=max(0.0, job.arrived - ended))
                except StageError as error:
                    if isinstance(error, StageFailed):
                        raise
                    self._tell(self._listener.broken, job.work, error)
                else:
                    self._tell(self._listener.finished, job.work, message)
                self._busy_since = None
                ended = time.perf_counter()
                if tokens:
                    self._patience.learn(ended - started, tokens)

    def _run(self, engine: Engine, job: _Run, started: float, idle: float) -> Outgoing:
        work, frame = job.work, job.frame
        body = frame.body
        if isinstance(body, Release):
            engine.release(body.seqs)
            self._spans.over(body.seqs, stage=work.stage_index)
            before = len(work.seqs)
            work.seqs.difference_update(body.seqs)
            self._held += len(work.seqs) - before
            if work.sampler is not None:
                work.sampler.release(body.seqs)
                return None
            return job.message
        if not isinstance(body, Step):
            if work.sampler is None:
                return job.message
            return encode_result(StepResult(epoch=frame.epoch, number=frame.number, heartbeat=body.nonce))
        before = len(work.seqs)
        work.seqs.update(row.seq for row in body.rows)
        self._held += len(work.seqs) - before
        if work.sampler is not None:
            work.sampler.prepare(body.rows)
        output = engine.run(body.rows, body.hidden)
        outcomes = () if work.sampler is None else work.sampler.sample(body.rows, output)
        ended = time.perf_counter()
        self._spans.ran(body.rows, epoch=work.epoch, started=started, ended=ended)
        timing = StageTiming(
            stage=work.stage_index,
            compute_us=_microseconds(ended - started),
            queue_us=_microseconds(started - job.arrived),
            idle_us=_microseconds(idle),
            send_us=work.send_us,
        )
        if work.sampler is not None:
            return encode_result(StepResult(frame.epoch, frame.number, outcomes, (*body.timings, timing)))
        return forward_step(job.message, output, work.hidden_dtype, timing)


def _tokens(frame: Frame) -> int:
    """How many tokens the frame feeds; 0 when it is no step."""
    return sum(len(row.tokens) for row in frame.body.rows) if isinstance(frame.body, Step) else 0


def _microseconds(seconds: float) -> int:
    return min(int(seconds * 1e6), 0xFFFFFFFF)
