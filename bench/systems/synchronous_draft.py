"""The paper's way to draft: before each verification wait until the draft model has said all K ids.

    propose ──(how the text stands)──> draft process, one id after the other ──> propose returns when K are there

It talks to the same draft process as shoal's own drafter, which never waits. While it waits nothing else happens in the
router, as on the paper's coordinator, whose draft model and first stage share one device.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from math import inf
from typing import NoReturn

import grpc

from shoal.errors import ResourceError
from shoal.vocabulary import Vocabulary, check_draft_vocabulary
from shoal.wire.drafts import DraftText, ProposeReply, ProposeRequest, decode_reply, encode_propose
from shoal.wire.stage_pb2 import ProposeRequest as ProposeMessage
from shoal.wire.stage_pb2_grpc import DraftStub
from shoal_router.draft.ahead import Ahead
from shoal_router.schedule.drafting import Draft

_PATIENCE_SECONDS = 60.0
"""For one reply: loading the draft model comes before the first."""


class SynchronousDrafter:
    """See Drafter. Blocks its caller.

    `failure`: why there are no drafts any more. A step loop outlives its drafter; figures of one without drafts must
    not be taken for those of one with drafts.
    """

    def __init__(self, address: str, vocabulary: Vocabulary) -> None:
        self.failure: ResourceError | None = None
        self._address = address
        self._texts: dict[int, Ahead] = {}
        self._asked: dict[int, int] = {}
        self._requests: queue.SimpleQueue[ProposeMessage] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[ProposeReply | grpc.RpcError] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        model = self._next().model
        if model is None:
            raise ResourceError(f"draft process at {address} does not say which model it has")
        check_draft_vocabulary(vocabulary, Vocabulary(model.name, model.vocab_size, model.vocabulary))

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:  # noqa: ARG002 - nothing is shared
        """See Drafter.begin."""
        if (known := self._texts.get(seq)) is not None:
            known.restart(tokens)
        else:
            self._texts[seq] = Ahead(seq, tokens)

    def wait(self, seq: int) -> float:  # noqa: ARG002 - propose itself waits
        """See Drafter.wait."""
        return inf

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose. As many ids as the limit, however improbable they are."""
        text = self._texts[seq]
        wanted = len(suffix) + limit
        if wanted > self._asked.get(seq, 0):
            # How far to draft travels with news of the text only.
            text.forget()
            self._asked[seq] = wanted
        while True:
            tokens, confidence = text.propose(suffix, limit)
            if len(tokens) == limit:
                return Draft(tuple(tokens), "model", tuple(confidence))
            if (news := text.message(self._asked[seq], 0.0)) is not None:
                self._tell(text=news)
            for proposal in self._next().proposals:
                if (other := self._texts.get(proposal.seq)) is not None:
                    other.receive(proposal)

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        self._texts[seq].commit(tokens)

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        if self._texts.pop(seq, None) is not None:
            self._asked.pop(seq, None)
            self._tell(ended=seq)

    def _tell(self, text: DraftText | None = None, ended: int | None = None) -> None:
        texts = () if text is None else (text,)
        self._requests.put(encode_propose(ProposeRequest(texts, () if ended is None else (ended,))))

    def _read(self) -> None:
        def written() -> Iterator[ProposeMessage]:
            while True:
                yield self._requests.get()

        try:
            with grpc.insecure_channel(self._address) as channel:
                for message in DraftStub(channel).Propose(written(), wait_for_ready=True):
                    self._replies.put(decode_reply(message))
        except grpc.RpcError as error:
            self._replies.put(error)

    def _next(self) -> ProposeReply:
        try:
            reply = self._replies.get(timeout=_PATIENCE_SECONDS)
        except queue.Empty:
            return self._fail(f"said nothing for {_PATIENCE_SECONDS:.0f} s")
        if isinstance(reply, grpc.RpcError):
            return self._fail(f"broke off: {reply}")
        return reply

    def _fail(self, what: str) -> NoReturn:
        self.failure = ResourceError(f"draft process at {self._address} {what}")
        raise self.failure
