"""One epoch on this stage: frames in, messages out, credits back. Lives on the event loop.

    upstream --Run--> Place (checks) --> compute thread --> outbox --> next hop | Results
                 <--------------- Credit, once the frame's message has left ----------------

A frame's credit returns only when its message has left the stage: so the number of frames that a stage holds, waiting
or computed, never exceeds the window, and a slow reader slows down everyone before it instead of filling memory.

Credits are the stage's pulse, too (wire/pulse): one goes back at least every PULSE_SECONDS, however long a step takes,
and says how far this stage and those behind it have got.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from shoal.errors import StageError
from shoal.wire.codec import decode_frame, encode_credit
from shoal.wire.errors import InvalidFrame, StaleEpoch, WrongPlace
from shoal.wire.messages import DType, Frame, StageProgress, Step
from shoal.wire.pulse import PULSE_SECONDS
from shoal.wire.stage_pb2 import Credit
from shoal.wire.stage_pb2 import Frame as FrameMessage
from shoal_stage.sample.grammar import Grammars
from shoal_stage.sample.sampler import Sampler
from shoal_stage.server.compute import ComputeThread, Outgoing, Work
from shoal_stage.server.place import Held, Place
from shoal_stage.server.refused import Refused

WINDOW = 32
_GRANT_AT = WINDOW // 2  # in handfuls: a message a frame would cost each hop a send and the upstream a wake-up

_log = logging.getLogger(__name__)

T = TypeVar("T")
Write = Callable[[Outgoing], Awaitable[None]]


class Session:
    """Invariant: once `ended` is set, nothing of this epoch is accepted, computed or sent any more."""

    def __init__(
        self,
        epoch: int,
        stage_index: int,
        hidden_dtype: DType,
        held: Held,
        compute: ComputeThread,
        refused: Refused,
        grammars: Grammars | None,
    ) -> None:
        self.place = Place(epoch, held)
        self.work = Work(epoch, stage_index, hidden_dtype, Sampler(grammars) if held.last else None)
        self.error: StageError | None = None
        self.ended = asyncio.Event()
        self._compute = compute
        self._refused = refused
        self._outbox: asyncio.Queue[Outgoing] = asyncio.Queue()
        self._inside = 0
        self._returned = 0
        self._grant = asyncio.Event()
        self._attached = asyncio.Event()
        self._detached = asyncio.Event()
        self._has_reader = False
        self._sending = False
        self._done = 0
        self._beyond: tuple[StageProgress, ...] = ()
        self._draining = False

    @property
    def inside(self) -> int:
        """Frames that were accepted and whose message has not left yet."""
        return self._inside

    def accept(self, message: FrameMessage) -> None:
        """Check a frame and queue it. Raises what Place.accept raises, and InvalidFrame beyond the window."""
        if self.error is not None:
            raise self.error
        try:
            frame = decode_frame(message)
            if self._inside >= WINDOW:
                raise InvalidFrame(f"frame {frame.number} came without credit: {WINDOW} frames are in flight already")
            self.place.accept(frame)
        except StageError as error:
            self._refused.count(error)
            raise
        self._name_new(frame)
        self._inside += 1
        self._compute.submit(self.work, frame, message)

    def _name_new(self, frame: Frame) -> None:
        """Log which request each new sequence belongs to: from here on the stage knows it by its number alone."""
        for row in frame.body.rows if isinstance(frame.body, Step) else ():
            if row.start is not None and row.start.request_id:
                named = {"request_id": row.start.request_id, "sequence": row.seq, "epoch": frame.epoch}
                _log.info("sequence came", extra=named)

    def finished(self, message: Outgoing) -> None:
        """The compute thread is done with the oldest frame."""
        self._done += 1
        if self.error is None:
            self._outbox.put_nowait(message)

    def end(self, error: StageError) -> None:
        """End the epoch: every stream of it ends with `error`, and its sequences are freed."""
        if self.error is not None:
            return
        self.error = error
        self.work.over = True
        self._compute.free(self.work)
        self.ended.set()

    async def credits(self, write: Callable[[Credit], Awaitable[None]]) -> None:
        """Hand credits back to the upstream, with a pulse, for as long as its stream lives."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PULSE_SECONDS):
                    await self._grant.wait()
            self._grant.clear()
            count, self._returned = self._returned, 0
            await write(encode_credit(count, self.progress()))

    def progress(self) -> tuple[StageProgress, ...]:
        """How far this stage has got, and those behind it when they were last heard."""
        busy_ms = int(self._compute.busy_seconds() * 1000)
        mine = StageProgress(self.work.stage_index, self._done, busy_ms, self._draining, self._refused.totals())
        return (mine, *self._beyond)

    def hear(self, beyond: tuple[StageProgress, ...]) -> None:
        """What the next stage said of itself and those behind it."""
        self._beyond = beyond

    async def hand_over(self, timeout: float) -> None:
        """Say that this stage is about to stop, and serve on until the upstream has left, at most `timeout` seconds."""
        self._draining = True
        self._grant.set()
        if not self._attached.is_set():
            return
        with suppress(TimeoutError, StageError):
            async with asyncio.timeout(timeout):
                await self.until_ended(self._detached.wait())

    async def send(self, write: Write) -> None:
        """Write what is computed, in order, until cancelled. One sender at a time."""
        self._sending = True
        try:
            while True:
                message = await self._outbox.get()
                if message is not None:
                    started = time.perf_counter()
                    await write(message)
                    self.work.send_us = int((time.perf_counter() - started) * 1e6)
                self._outbox.task_done()
                self._left()
        finally:
            self._sending = False

    async def flushed(self, timeout: float) -> None:
        """Wait until everything computed has left; give up after `timeout` seconds, or when nobody takes it."""
        if not self._sending:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._outbox.join()

    def require_last(self) -> None:
        """Raises WrongPlace unless tokens are drawn here."""
        if self.work.sampler is None:
            raise self._refuse(WrongPlace("results come from the last stage of the pipeline; this one is not the last"))

    @contextmanager
    def upstream(self) -> Iterator[None]:
        """The one stream that feeds this epoch. Raises WrongPlace when there is one already."""
        if self._attached.is_set():
            raise self._refuse(WrongPlace(f"epoch {self.work.epoch} already has an upstream"))
        self._attached.set()
        self._detached.clear()
        try:
            yield
        finally:
            self._attached.clear()
            self._detached.set()

    @contextmanager
    def reader(self) -> Iterator[None]:
        """The one stream that takes this epoch's results. Raises WrongPlace when there is one already."""
        if self._has_reader:
            raise self._refuse(WrongPlace(f"the results of epoch {self.work.epoch} are being read already"))
        self._has_reader = True
        try:
            yield
        finally:
            self._has_reader = False

    async def abandoned(self, patience: float) -> None:
        """Return when the upstream has left and stayed away for `patience` seconds."""
        while True:
            await self._detached.wait()
            try:
                async with asyncio.timeout(patience):
                    await self._attached.wait()
            except TimeoutError:
                return

    async def until_ended(self, work: Awaitable[T]) -> T:
        """Await `work`; raises the epoch's error as soon as the epoch ends."""
        if self.error is not None:
            raise self.error
        task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if self.error is not None:
                raise self.error
            return task.result()
        finally:
            for each in (task, ended):
                each.cancel()
            await asyncio.gather(task, ended, return_exceptions=True)

    def _refuse(self, error: StageError) -> StageError:
        self._refused.count(error)
        return error

    def _left(self) -> None:
        self._inside -= 1
        self._returned += 1
        if self._returned >= _GRANT_AT:
            self._grant.set()


def session_of(session: Session | None, epoch: int) -> Session:
    """The session if it serves `epoch`. Raises StaleEpoch for older epochs, WrongPlace for ones not opened yet."""
    current = 0 if session is None else session.work.epoch
    if session is None or epoch > current:
        raise WrongPlace(f"epoch {epoch} was not opened on this stage")
    if epoch < current:
        raise StaleEpoch(f"epoch {epoch} is over: this stage serves epoch {current}")
    if session.error is not None:
        raise session.error
    return session
