"""One epoch of a pipeline over gRPC: router -> first stage -> … -> last stage -> router.

    submit, release ──> outbox ──(credit)──> Run of the first stage
    result <──────────────────────────────── Results of the last stage

The caller of `result` reads the stream itself: between the network and the scheduler there is no task and no queue.
Four tasks live beside it: the sender, the reader of credits (whose stream also says why the first stage, or any stage
behind it, gave up), the one that counts how long both ends of the ring have been silent, and the watch, which sends
heartbeats round an idle ring and bounds the wait for a busy one. The first of them to learn that the epoch is over sets
the error; everything else ends by it.

Each hop is watched by the stage before it (wire/pulse), so silence anywhere ends the epoch within three seconds. A step
is waited for as long as any stage gets on with its work: pulses say how far each of them is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc

from shoal.errors import StageError
from shoal.patience import FIRST_STEP_SECONDS, LEAST_SECONDS, ROUTER_MARGIN, StepPatience
from shoal.wire.codec import decode_progress, decode_result, encode_frame
from shoal.wire.errors import InvalidFrame, StageFailed, StageNotReady, StageUnreachable, from_rpc_error
from shoal.wire.messages import Frame, Heartbeat, Release, StageProgress, Step, StepResult
from shoal.wire.pulse import PULSE_SECONDS, STRIKES, Strikes
from shoal.wire.refused import RefusedPeers
from shoal.wire.stage_pb2 import Frame as FrameMessage
from shoal_router.pipeline.interface import PipelineFacts

_CLOSE_SECONDS = 1.0
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in grpc-stubs


@dataclass(frozen=True, slots=True)
class RingTimes:
    """Seconds. `pulse` and `strikes`: when silence at an end of the ring ends the epoch. `heartbeat`: how often an idle
    ring is asked; `heartbeat_deadline`: when the lack of an answer ends the epoch although no stage computes anything.
    `first_step`, `least_step`: how long the ring may stand still with a step in it (shoal/patience).
    """

    pulse: float = PULSE_SECONDS
    strikes: int = STRIKES
    heartbeat: float = 1.0
    heartbeat_deadline: float = 10.0
    first_step: float = FIRST_STEP_SECONDS + ROUTER_MARGIN
    least_step: float = LEAST_SECONDS + ROUTER_MARGIN


def _stays() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Owed:
    """A frame whose result is due. `tokens` is 0 for a heartbeat."""

    number: int
    sent: float
    tokens: int


class RingPipeline:
    """Invariant: results come in the order of `_owed`; anything else ends the epoch."""

    def __init__(
        self,
        facts: PipelineFacts,
        channels: Sequence[grpc.aio.Channel],
        run: Any,
        results: Any,
        times: RingTimes,
        moved: Callable[[], bool] = _stays,
        refused: RefusedPeers | None = None,
    ) -> None:
        """`moved` says whether the plan names other stages by now; asked only while a stage drains. `refused` keeps
        account of what was refused anywhere in the ring.
        """
        self._facts = facts
        self._channels = channels
        self._run = run
        self._results = results
        self._times = times
        self._moved = moved
        self._refused = refused or RefusedPeers()
        self._patience = StepPatience(times.first_step, times.least_step)
        self._strikes, self._overdue = Strikes(times.strikes), Strikes(times.strikes)
        self._progress: tuple[StageProgress, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._nonces = count(1)
        self._owed: deque[_Owed] = deque()
        self._outbox: deque[FrameMessage] = deque()
        self._credits = 0
        self._sendable = asyncio.Event()
        self._last_result = self._last_news = self._loop.time()
        self._error: StageError | None = None
        self._tasks = [
            asyncio.create_task(self._send_frames(), name="ring sender"),
            asyncio.create_task(self._take_credits(), name="ring credits"),
            asyncio.create_task(self._fall_silent(), name="ring silence"),
            asyncio.create_task(self._watch(), name="ring watch"),
        ]

    @property
    def facts(self) -> PipelineFacts:
        """See Pipeline.facts."""
        return self._facts

    @property
    def progress(self) -> tuple[StageProgress, ...]:
        """See Pipeline.progress."""
        return self._progress

    def submit(self, step: Step) -> None:
        """See Pipeline.submit."""
        self._queue(step, sum(len(row.tokens) for row in step.rows))

    def release(self, seqs: Sequence[int]) -> None:
        """See Pipeline.release."""
        self._queue(Release(tuple(seqs)), None)

    async def result(self) -> StepResult:
        """See Pipeline.result. Heartbeats that come back are swallowed here."""
        while True:
            result = await self._next()
            if result.heartbeat is None:
                return result

    async def prove(self) -> None:
        """Send a heartbeat round the ring and wait for it: every stage's compute thread lives."""
        self._beat()
        await self._next()

    async def close(self) -> None:
        """See Pipeline.close."""
        self._lose(StageError("the pipeline is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_channels(self._channels)

    # ---- inside

    def _queue(self, body: Step | Release | Heartbeat, tokens: int | None) -> None:
        if self._error is not None:
            return  # `result` says so
        number = next(self._numbers)
        self._outbox.append(encode_frame(Frame(self._facts.epoch, number, body)))
        if tokens is not None:
            self._owed.append(_Owed(number, self._loop.time(), tokens))
        self._sendable.set()

    def _beat(self) -> None:
        self._queue(Heartbeat(next(self._nonces)), 0)

    async def _next(self) -> StepResult:
        """The next result of any kind, checked against what is owed."""
        if self._error is not None:
            raise self._error
        last = self._facts.addresses[-1]
        try:
            message = await self._results.read()
            if message is _EOF:
                raise StageUnreachable(f"stage at {last} ended the stream of results")
            result = decode_result(message)
            self._settle(result)
        except grpc.aio.AioRpcError as error:
            raise self._lose(from_rpc_error(error, last)) from None
        except StageError as error:
            self._refused.here(error)
            raise self._lose(error) from None
        except asyncio.CancelledError:
            # The stream was cancelled because the epoch ended, unless it is the caller who is being cancelled.
            task = asyncio.current_task()
            if self._error is None or (task is not None and task.cancelling()):
                raise
            raise self._error from None
        return result

    def _settle(self, result: StepResult) -> None:
        if not self._owed or (result.epoch, result.number) != (self._facts.epoch, self._owed[0].number):
            due = f"frame {self._owed[0].number}" if self._owed else "nothing"
            raise InvalidFrame(
                f"a result for frame {result.number} of epoch {result.epoch} came back, {due} is due "
                f"in epoch {self._facts.epoch}"
            )
        owed = self._owed.popleft()
        self._overdue.heard()
        if (result.heartbeat is None) != bool(owed.tokens):
            raise InvalidFrame(f"the result of frame {owed.number} is of the wrong kind")
        now = self._loop.time()
        if owed.tokens:
            self._patience.learn(now - max(owed.sent, self._last_result), owed.tokens)
        self._last_result = self._last_news = now

    def _lose(self, error: StageError) -> StageError:
        """End the epoch; returns the error that ended it first."""
        if self._error is None:
            self._error = error
            self._run.cancel()
            self._results.cancel()
        return self._error

    async def _send_frames(self) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader of credits learns the reason
            while True:
                while self._outbox and self._credits:
                    self._credits -= 1
                    await self._run.write(self._outbox.popleft())
                self._sendable.clear()
                await self._sendable.wait()

    async def _take_credits(self) -> None:
        first = self._facts.addresses[0]
        try:
            while (credit := await self._run.read()) is not _EOF:
                self._strikes.heard()
                self._credits += credit.frames
                self._sendable.set()
                self._hear(decode_progress(credit))
            self._lose(StageUnreachable(f"stage at {first} ended the stream"))
        except grpc.aio.AioRpcError as error:
            self._lose(from_rpc_error(error, first))

    def _hear(self, progress: tuple[StageProgress, ...]) -> None:
        """Take in what a pulse says of the stages."""
        if [each.done for each in progress] != [each.done for each in self._progress]:
            self._last_news = self._loop.time()
        self._progress = progress
        for each in progress:
            if each.refused and each.stage < self._facts.stages:
                self._refused.said(each.stage, self._facts.addresses[each.stage], each.refused)
        leaving = [each.stage for each in progress if each.draining]
        if leaving and self._moved():
            self._lose(StageNotReady(f"stage {leaving[0]} is stopping, and the plan names another in its place"))

    async def _fall_silent(self) -> None:
        """Watch both ends of the ring: the first stage by its pulses, the last one by results that it has sent."""
        first, last = self._facts.addresses[0], self._facts.addresses[-1]
        while True:
            if self._strikes.tick():
                self._lose(StageUnreachable(f"stage at {first} has fallen silent: its machine or process is gone"))
            elif self._is_overdue() and self._overdue.tick():
                number = self._owed[0].number
                self._lose(StageUnreachable(f"stage at {last} has done frame {number}, but its result does not arrive"))
            await asyncio.sleep(self._times.pulse)

    def _is_overdue(self) -> bool:
        """Whether the last stage is done with what is due."""
        said = self._progress
        return len(said) == self._facts.stages and bool(self._owed) and said[-1].done > self._owed[0].number

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._times.heartbeat)
            now = self._loop.time()
            if not self._owed:
                if now - self._last_result >= self._times.heartbeat:
                    self._beat()
                continue
            oldest = self._owed[0]
            waited = now - max(self._last_news, oldest.sent)
            computing = oldest.tokens or any(each.busy_ms for each in self._progress)
            allowed = self._patience.allowed(oldest.tokens) if computing else self._times.heartbeat_deadline
            if waited > allowed:
                what = "step" if oldest.tokens else "heartbeat"
                self._lose(
                    StageFailed(
                        f"no answer to a {what} for {waited:.0f} s from the pipeline of stages "
                        f"{', '.join(self._facts.addresses)}: one of them hangs{self._where()}"
                    )
                )

    def _where(self) -> str:
        """What the stages said last, for whoever has to find the one that hangs."""
        said = [f"stage {each.stage} has done {each.done} frames" for each in self._progress]
        return f" ({', '.join(said)}; frame {self._owed[0].number} is due)" if said else ""


async def close_channels(channels: Sequence[grpc.aio.Channel]) -> None:
    """Let go of the connections. Bounded: closing has been seen to hang while a keepalive fires (grpc#19910)."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            # What a channel says while it closes helps nobody, and must not end whoever lets go of it.
            await asyncio.gather(*(channel.close(None) for channel in channels), return_exceptions=True)
