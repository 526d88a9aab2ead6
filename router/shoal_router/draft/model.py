"""Drafts of a small model in a process of its own: `propose` answers with what has arrived by now.

    begin, commit, end, propose ──> Ahead of each sequence ──(what changed)──> draft process
    propose <── Ahead of each sequence <─────────────────(id by id)─────────── draft process

The draft process works while the pipeline does, ahead of what is committed and sent; the event loop never waits for
it. While it cannot be reached there are no drafts from here, and that is all: it is looked for again with growing
pauses, and said once. A draft model with another vocabulary is refused for good, and by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

import grpc

from shoal.errors import ShoalError, StageError, UsageError
from shoal.tasks import end_task
from shoal.vocabulary import Vocabulary, check_draft_vocabulary
from shoal.wire.drafts import ProposeReply, ProposeRequest, decode_reply, encode_propose
from shoal.wire.errors import StageUnreachable, from_rpc_error
from shoal.wire.stage_pb2_grpc import DraftStub
from shoal.wire.transport import channel_options
from shoal_router.draft.ahead import Ahead
from shoal_router.draft.pace import Pace, least_survival
from shoal_router.pipeline.ring import close_channels
from shoal_router.schedule.acceptance import Acceptance
from shoal_router.schedule.drafting import Draft

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in grpc-stubs
_MAX_MESSAGE_BYTES = 16 << 20
_AHEAD = 64
"""Ids drafted ahead at most; the stop rule ends it sooner."""

_UNASKED = 2
"""After so many commits in which nobody asked for a text's drafts, the draft process hears no more of it until somebody
does: where drafts do not pay, as in a crowd, making them only takes time from stages on the same cores."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftTimes:
    """Seconds. `connect`: how long the draft process may take to say what it is. The pauses are between attempts."""

    connect: float = 10.0
    first_pause: float = 0.2
    longest_pause: float = 5.0


@dataclass(slots=True)
class _Sequence:
    """`least`: the confidence below which the draft process was told to stop; `unasked`: commits since one asked."""

    ahead: Ahead
    pace: Pace
    least: float = 0.0
    unasked: int = 0

    @property
    def wanted(self) -> bool:
        """Whether anybody still asks for its drafts."""
        return self.unasked <= _UNASKED


class ModelDrafter:
    """See Drafter. `start`, then `stop`; everything on the event loop of `start`."""

    name = "model"

    def __init__(self, address: str, vocabulary: Vocabulary, times: DraftTimes | None = None) -> None:
        self._address = address
        self._vocabulary = vocabulary
        self._times = times or DraftTimes()
        self._sequences: dict[int, _Sequence] = {}
        self._changed: set[int] = set()
        self._ended: list[int] = []
        self._news = asyncio.Event()
        self._step_seconds = 0.0
        self._acceptance = Acceptance()
        self._said = ""
        self._when_more: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()

    def when_more(self, callback: Callable[[], None]) -> None:
        """Call this whenever drafts have arrived: who was told that there are none may ask again."""
        self._when_more = callback

    async def start(self) -> None:
        """Begin to look for the draft process; returns at once."""
        self._task = asyncio.create_task(self._keep_talking(), name="draft model")

    async def stop(self) -> None:
        """Let go of the draft process."""
        await end_task(self._task)
        self._task = None

    # --- Drafter ----------------------------------------------------------------------------------------------

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:  # noqa: ARG002 - nothing is shared
        """See Drafter.begin."""
        known = self._sequences.get(seq)
        if known is None:
            self._sequences[seq] = _Sequence(Ahead(seq, tokens), Pace())
        else:
            known.ahead.restart(tokens)
        self._change(seq)

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        if not self.connected.is_set():
            return None
        self._want(seq)
        tokens, confidence = self._sequences[seq].ahead.propose(suffix, limit)
        if not tokens:
            self._change(seq)
            return None
        return Draft(tuple(tokens), self.name, tuple(confidence))

    def wait(self, seq: int) -> float:
        """See Drafter.wait: one more step of the draft process, unless it has stopped for this text. Who asks wants it
        to go on."""
        sequence = self._sequences[seq]
        ahead = sequence.ahead
        drafting = sequence.wanted and ahead.survival >= sequence.least and len(ahead.drafts) < _AHEAD
        self._want(seq)
        return self._step_seconds if self.connected.is_set() and self._step_seconds and drafting else inf

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        sequence = self._sequences[seq]
        for confidence, hit in sequence.ahead.commit(tokens):
            self._acceptance.learn(self.name, 0, confidence, hit)
        sequence.pace.commit(len(tokens), asyncio.get_running_loop().time())
        sequence.unasked += 1
        if sequence.wanted:
            self._change(seq)

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        if self._sequences.pop(seq, None) is not None:
            self._changed.discard(seq)
            self._ended.append(seq)
            self._news.set()

    def _want(self, seq: int) -> None:
        """Somebody asks for drafts of this text, or when they come."""
        if not self._sequences[seq].wanted:
            self._change(seq)
        self._sequences[seq].unasked = 0

    # --- the talk ---------------------------------------------------------------------------------------------

    def _change(self, seq: int) -> None:
        self._changed.add(seq)
        self._news.set()

    async def _keep_talking(self) -> None:
        pause = self._times.first_pause
        while True:
            try:
                await self._talk()
            except UsageError as error:
                _log.error("no drafts from %s: %s", self._address, error)
                return
            except ShoalError as error:
                self._note(f"no drafts from {self._address} for now: {error}")
            except Exception as error:  # noqa: BLE001 - a defect here costs the drafts, not the answers; logged in full
                _log.error("the talk with the draft process met a defect", exc_info=error)
            if self.connected.is_set():
                self.connected.clear()
                pause = self._times.first_pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._times.longest_pause)

    async def _talk(self) -> None:
        """One connection, until it is lost. Raises StageError, or UsageError when the model is of no use."""
        channel = grpc.aio.insecure_channel(self._address, options=channel_options(_MAX_MESSAGE_BYTES))
        stream: Any = DraftStub(channel).Propose()  # type: ignore[no-untyped-call]
        telling: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._times.connect):
                self._meet(await _next(stream))
            telling = asyncio.create_task(self._tell(stream), name="draft model news")
            while True:
                self._hear(await _next(stream))
        except TimeoutError:
            seconds = self._times.connect
            raise StageUnreachable(f"draft process at {self._address} said nothing for {seconds:.0f} s") from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._address) from None
        finally:
            stream.cancel()
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            await close_channels([channel])

    def _meet(self, reply: ProposeReply) -> None:
        model = reply.model
        if model is None:
            raise StageError(f"draft process at {self._address} does not say which model it has: its version differs")
        check_draft_vocabulary(self._vocabulary, Vocabulary(model.name, model.vocab_size, model.vocabulary))
        self._ended.clear()
        for sequence in self._sequences.values():
            sequence.ahead.forget()
        self._changed.update(self._sequences)
        self._news.set()
        self.connected.set()
        self._said = ""
        _log.info("drafts from %s by %s", self._address, model.name)

    async def _tell(self, stream: Any) -> None:
        """Write what changed; several changes while one message is being written become one message."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # whoever reads the stream learns why
            while True:
                await self._news.wait()
                self._news.clear()
                request = self._request()
                if request.texts or request.ended:
                    await stream.write(encode_propose(request))

    def _request(self) -> ProposeRequest:
        texts = []
        exponent = self._acceptance.exponent(self.name, 0)
        for seq in self._changed:
            sequence = self._sequences[seq]
            # The draft process knows its own confidence only, not what became of it.
            least = least_survival(sequence.pace.rate, self._step_seconds) ** (1.0 / exponent)
            if (text := sequence.ahead.message(_AHEAD, least)) is not None:
                sequence.least = least
                texts.append(text)
        request = ProposeRequest(tuple(texts), tuple(self._ended))
        self._changed.clear()
        self._ended.clear()
        return request

    def _hear(self, reply: ProposeReply) -> None:
        if reply.step_us:
            seconds = reply.step_us / 1e6
            self._step_seconds += (seconds - self._step_seconds) * (0.1 if self._step_seconds else 1.0)
        for proposal in reply.proposals:
            if (sequence := self._sequences.get(proposal.seq)) is not None:
                sequence.ahead.receive(proposal)
        if reply.proposals:
            self._when_more()

    def _note(self, line: str) -> None:
        if line != self._said:
            self._said = line
            _log.warning("%s", line)


async def _next(stream: Any) -> ProposeReply:
    message = await stream.read()
    if message is _EOF:
        raise StageUnreachable("the draft process ended the stream")
    return decode_reply(message)
