"""A draft process from its first breath to its last, and its port. Unlike a stage it has no epochs: a text is a text.

A router that is gone takes its texts with it. One that stays away costs nothing: without texts nothing is drafted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count

from shoal.errors import ShoalError, StageError
from shoal.tasks import end_task
from shoal.wire.drafts import DraftModel, ProposeReply, ProposeRequest
from shoal.wire.errors import StageFailed, StageNotReady
from shoal.wire.messages import StageState
from shoal.wire.stage_pb2_grpc import add_DraftServicer_to_server
from shoal_stage.draft.service import DraftService
from shoal_stage.draft.thread import DraftThread
from shoal_stage.engine.interface import Engine
from shoal_stage.server.listen import Port
from shoal_stage.server.stage import Patience

SERVICE = "shoal.stage.v1.Draft"

_MAX_MESSAGE_BYTES = 16 << 20
_GONE_SECONDS = 0.1

_log = logging.getLogger(__name__)


class RouterStream:
    """One router's stream, as the event loop sees it: what goes out to it, or why it ends."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self._replies: asyncio.Queue[ProposeReply | StageError] = asyncio.Queue()

    def put(self, item: ProposeReply | StageError) -> None:
        """A reply, or the stream's end."""
        self._replies.put_nowait(item)

    async def next(self) -> ProposeReply:
        """The next reply. Raises the StageError that ends the stream."""
        item = await self._replies.get()
        if isinstance(item, StageError):
            raise item
        return item


class DraftServer:
    """A listening draft process. `start`, then `stop`; both from the event loop that made it."""

    def __init__(
        self, load: Callable[[], Engine], model: DraftModel, patience: Patience, *, prefill_chunk: int
    ) -> None:
        self._model = model
        self._patience = patience
        self._port = Port(SERVICE, _MAX_MESSAGE_BYTES)
        self._thread = DraftThread(load, self, vocab_size=model.vocab_size, prefill_chunk=prefill_chunk)
        self._streams: dict[int, RouterStream] = {}
        self._owners = count()
        self._state = StageState.LOADING
        self._detail = "loading the model"
        self._facts: dict[str, object] | None = None
        self._began = time.monotonic()
        self._watch: asyncio.Task[None] | None = None
        self.failure: ShoalError | None = None
        self.settled = asyncio.Event()
        """Ready, or failed."""
        self.failed = asyncio.Event()
        add_DraftServicer_to_server(DraftService(self), self._port.grpc)  # type: ignore[no-untyped-call]

    async def start(self, listen: str) -> str:
        """Listen, begin to load; returns the address that routers dial. Raises what Port.open raises."""
        address = await self._port.open(listen)
        self._thread.start()
        self._watch = asyncio.create_task(self._watch_progress(), name="watch the draft engine")
        return address

    def ready(self) -> dict[str, object] | None:
        """What it says of itself when it is ready; None when it is not."""
        return self._facts if self._state is StageState.READY else None

    async def stop(self) -> bool:
        """End the streams, finish the step in hand, close. False when the step did not end in time."""
        waits = self._state is StageState.READY
        if self._state is not StageState.FAILED:
            self._enter(StageState.DRAINING, "stopping")
        self._end_streams(StageNotReady("draft process is stopping"))
        # A load cannot be interrupted, and a hung step will not end: nobody waits for either.
        finished = await self._thread.stop(self._patience.drain if waits else _GONE_SECONDS)
        await end_task(self._watch)
        await self._port.close()
        return finished

    # --- what a router asks -----------------------------------------------------------------------------------

    def join(self) -> RouterStream:
        """A router's stream begins; its first reply says what the model is. Raises StageNotReady or StageFailed."""
        if self._state is StageState.FAILED:
            raise StageFailed(f"draft process failed: {self._detail}")
        if self._state is not StageState.READY:
            raise StageNotReady(f"draft process is {self._state.value.lower()}: {self._detail}")
        stream = RouterStream(next(self._owners))
        stream.put(ProposeReply(model=self._model))
        self._streams[stream.owner] = stream
        return stream

    def say(self, stream: RouterStream, request: ProposeRequest) -> None:
        """What the router said, in order."""
        self._thread.say(stream.owner, request)

    def leave(self, stream: RouterStream) -> None:
        """The stream is over."""
        if self._streams.pop(stream.owner, None) is not None:
            self._thread.leave(stream.owner)

    # --- what the compute thread tells (DraftListener) --------------------------------------------------------

    def loaded(self, engine: Engine) -> None:
        """The engine is ready: serve."""
        self._model = replace(self._model, max_context=engine.capacity.max_context)
        seconds = time.monotonic() - self._began
        detail = f"{engine.info.fused_attention} layers with fused attention, loaded in {seconds:.1f} s"
        self._facts = {"detail": detail, "capacity": asdict(engine.capacity)}
        if self._state is StageState.LOADING:
            self._enter(StageState.READY, detail)

    def drafted(self, owner: int, reply: ProposeReply) -> None:
        """Something for one router, if it is still there."""
        if owner in self._streams:
            self._streams[owner].put(reply)

    def refused(self, owner: int, error: StageError) -> None:
        """One router's stream ends."""
        _log.warning("a stream is refused: %s", error)
        if owner in self._streams:
            self._streams[owner].put(error)

    def dead(self, error: ShoalError) -> None:
        """The compute thread is gone, or hangs: say so, and end."""
        if self._state is StageState.FAILED:
            return
        self.failure = error
        self._enter(StageState.FAILED, str(error))
        self._end_streams(error if isinstance(error, StageError) else StageFailed(str(error)))
        self.failed.set()

    # --- inside -----------------------------------------------------------------------------------------------

    def _enter(self, state: StageState, detail: str) -> None:
        self._state, self._detail = state, detail
        _log.info("draft process is %s", state.value, extra={"state": state.value, "detail": detail})
        self._port.on_state(state)
        if state in (StageState.READY, StageState.FAILED):
            self.settled.set()

    def _end_streams(self, error: StageError) -> None:
        for stream in self._streams.values():
            stream.put(error)

    async def _watch_progress(self) -> None:
        self.dead(await self._thread.hang(lambda: self._patience.step))
