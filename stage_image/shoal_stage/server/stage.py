"""A stage from its first breath to its last: loading, ready, draining, failed; and which epoch it serves.

    LOADING --engine loaded--> READY --SIGTERM--> DRAINING
        \\______ error ______ / \\______ compute thread lost _____> FAILED

grpc.health.v1 says SERVING in READY only. Everything here runs on the event loop; the engine lives on the compute
thread (compute.py), an epoch's traffic in its Session (session.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace

from shoal.errors import ResourceError, ShoalError, StageError
from shoal.patience import FIRST_STEP_SECONDS, StepPatience
from shoal.tracing import Traces
from shoal.wire.errors import StageFailed, StageNotReady, StaleEpoch, WrongPlace
from shoal.wire.messages import OpenReply, OpenRequest, StageDescription, StageState
from shoal.wire.refused import reason_of
from shoal.wire.tls import TlsDirectory
from shoal_stage.engine.interface import Engine
from shoal_stage.sample.grammar import Grammars
from shoal_stage.server.compute import ComputeThread, Outgoing, Work
from shoal_stage.server.onward import NextHop
from shoal_stage.server.place import Held, check_open
from shoal_stage.server.refused import Refused
from shoal_stage.server.session import Session, session_of
from shoal_stage.server.spans import StageSpans

FLUSH_SECONDS = 2.0
_GONE_SECONDS = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """Every wait's deadline, in seconds.

    `step`: a first forward pass that takes longer means a hung device; later ones are measured by those before them
    (shoal/patience). `orphan`: how long an epoch whose upstream left keeps its KV. When the stage is told to stop,
    `hand_over` is how long it serves on for the router to move elsewhere, `drain` how long the step in hand may take.
    """

    step: float = FIRST_STEP_SECONDS
    orphan: float = 5.0
    hand_over: float = 10.0
    drain: float = 10.0


class Stage:
    """Invariant: at most one session is alive, and its epoch is the highest that was ever opened."""

    def __init__(
        self,
        load: Callable[[], Engine],
        description: StageDescription,
        patience: Patience,
        on_state: Callable[[StageState], None],
        tls: TlsDirectory | None = None,
        traces: Traces | None = None,
        refused: Refused | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._tls = tls
        self._grammars = grammars
        self.refused = refused or Refused()
        self._description = description
        self._patience = patience
        self._on_state = on_state
        blocks = f"{description.block_start}:{description.block_end}"
        spans = StageSpans(traces, blocks, description.device)
        self._compute = ComputeThread(load, self, StepPatience(patience.step), spans)
        self._held: Held | None = None
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.monotonic()
        self.failure: ShoalError | None = None
        self.settled = asyncio.Event()
        """READY or FAILED was reached."""
        self.failed = asyncio.Event()

    def start(self) -> None:
        """Begin to load, and to watch the compute thread."""
        self._compute.start()
        self._spawn(self._watch_progress())

    # --- what the wire asks for -------------------------------------------------------------------------------

    def describe(self) -> StageDescription:
        """What this stage is, right now."""
        return replace(self._description, held=self._compute.held, refused=self.refused.totals())

    async def open(self, request: OpenRequest) -> OpenReply:
        """Take the place in a pipeline that `request` gives. Closes older epochs, even when it then fails."""
        async with self._opening:
            held = self._require_ready()
            try:
                check_open(request, held, self._description.epoch)
            except StageError as error:
                self.refused.count(error)
                raise
            self._end_session(StaleEpoch(f"epoch {request.epoch} was opened on this stage"))
            self._description = replace(self._description, epoch=request.epoch)
            hop = self._next_hop(request.next_address, held.max_frame_bytes)
            if hop is not None:
                try:
                    await hop.connect(self._description)
                    self._require_ready()
                except BaseException as error:
                    if isinstance(error, StageError) and reason_of(error) is not None:
                        self.refused.count(error)
                    await hop.close()
                    raise
            session = Session(
                request.epoch,
                request.stage_index,
                request.hidden_dtype,
                held,
                self._compute,
                self.refused,
                self._grammars,
            )
            self._session = session
            if hop is not None:
                self._spawn(self._forward(session, hop))
            self._spawn(self._end_when_orphaned(session))
            _log.info("epoch opened", extra={"epoch": request.epoch, "next": request.next_address})
            return OpenReply(epoch=request.epoch)

    def session(self, epoch: int) -> Session:
        """The session of `epoch`. Raises StaleEpoch, WrongPlace, StageNotReady or StageFailed."""
        self._require_ready()
        try:
            return session_of(self._session, epoch)
        except (StaleEpoch, WrongPlace) as error:
            self.refused.count(error)
            raise

    # --- what the compute thread tells (Listener) -------------------------------------------------------------

    def loaded(self, engine: Engine) -> None:
        """The engine is ready: serve."""
        info, capacity, said = engine.info, engine.capacity, self._description
        self._held = Held(
            model_digest=said.model_digest,
            block_start=said.block_start,
            block_end=said.block_end,
            blocks_in_model=said.blocks_in_model,
            hidden_size=said.hidden_size,
            vocab_size=said.vocab_size,
            max_frame_bytes=said.max_frame_bytes,
            capacity=capacity,
        )
        self._description = replace(
            said,
            engine=info.engine,
            device=info.device,
            execution_devices=info.execution_devices,
            exact=info.exact,
            versions={**said.versions, **info.versions},
            capacity=capacity,
        )
        if said.state is StageState.LOADING:
            detail = (
                f"{info.fused_attention} layers with fused attention, loaded in {time.monotonic() - self._began:.1f} s"
            )
            self._enter(StageState.READY, detail)

    def finished(self, work: Work, message: Outgoing) -> None:
        """A frame is done."""
        if self._session is not None and self._session.work is work:
            self._session.finished(message)

    def broken(self, work: Work, error: StageError) -> None:
        """A frame could not be run: its epoch ends."""
        _log.warning("epoch broken", extra={"epoch": work.epoch, "reason": str(error)})
        if self._session is not None and self._session.work is work:
            self._session.end(error)

    def dead(self, error: ShoalError) -> None:
        """The compute thread is gone, or hangs: say so everywhere, and end."""
        if self._description.state is StageState.FAILED:
            return
        self.failure = error
        self._enter(StageState.FAILED, str(error))
        self._end_session(error if isinstance(error, StageError) else StageFailed(str(error)))
        self.failed.set()

    # --- the end ----------------------------------------------------------------------------------------------

    async def drain(self) -> bool:
        """Refuse new epochs, serve on until the router has moved, finish the step in hand, end the streams.

        False when the step took too long.
        """
        if self._description.state is not StageState.FAILED:
            self._enter(StageState.DRAINING, "stopping: serving on until the router has moved")
        session = self._session
        if session is not None and session.error is None:
            await session.hand_over(self._patience.hand_over)
        if session is not None and session.error is None:
            session.work.over = True
            await self._compute.settled(self._patience.drain)
            await session.flushed(FLUSH_SECONDS)
            session.end(StageNotReady("stage is stopping"))
        # A load cannot be interrupted, and a hung step will not end: nobody waits for either.
        waits = self._held is not None and self.failure is None
        stopped = await self._compute.stop(self._patience.drain if waits else _GONE_SECONDS)
        if self._grammars is not None:
            self._grammars.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return stopped

    # --- inside -----------------------------------------------------------------------------------------------

    def _require_ready(self) -> Held:
        state, held = self._description.state, self._held
        if state is StageState.FAILED:
            raise StageFailed(f"stage failed: {self._description.detail}")
        if state is not StageState.READY or held is None:
            raise StageNotReady(f"stage is {state.value.lower()}: {self._description.detail}")
        return held

    def _next_hop(self, address: str, max_frame_bytes: int) -> NextHop | None:
        if not address:
            return None
        try:
            return NextHop(address, max_frame_bytes, self._tls)
        except ResourceError as error:
            raise StageNotReady(str(error)) from None

    def _enter(self, state: StageState, detail: str) -> None:
        self._description = replace(self._description, state=state, detail=detail)
        _log.info("stage is %s", state.value, extra={"state": state.value, "detail": detail})
        self._on_state(state)
        if state in (StageState.READY, StageState.FAILED):
            self.settled.set()

    def _end_session(self, error: StageError) -> None:
        if self._session is not None:
            self._session.end(error)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, session: Session, hop: NextHop) -> None:
        """Send this epoch's frames on; a hop that breaks ends the epoch, and so tells the upstream why."""
        sender = asyncio.ensure_future(session.send(hop.write))
        try:
            with suppress(StageError):  # the epoch ended for another reason, which its streams carry
                session.end(await session.until_ended(hop.watch(session.hear)))
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            await hop.close()

    async def _end_when_orphaned(self, session: Session) -> None:
        """Free an epoch's memory when its upstream left and did not come back."""
        with suppress(StageError):  # the epoch ended for another reason
            await session.until_ended(session.abandoned(self._patience.orphan))
            session.end(StaleEpoch(f"epoch {session.work.epoch} ended: its upstream left"))

    async def _watch_progress(self) -> None:
        self.dead(await self._compute.hang(self._compute.allowed_seconds))
