"""The messages between the router and a draft process as plain dataclasses, and their protobuf form.

The router tells the draft process how each text stands; the draft process continues it, greedily, id by id, and sends
each id as soon as it has it. Neither waits for the other: what crosses on the way is told apart by `version`, which
grows whenever a text turned out otherwise than drafted.

    router   texts: seq 7 version 1, base 0, the prompt's ids
    draft    proposals: seq 7 version 1, base 5: one id; base 6: one more
    router   texts: seq 7 version 1, confirmed 6                 the first one became text: draft on
    router   texts: seq 7 version 2, base 6: another id          the second one did not
    draft    proposals: seq 7 version 1, base 7                  had left already: ignored
    draft    proposals: seq 7 version 2, base 7
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.wire import stage_pb2 as pb
from shoal.wire.errors import InvalidFrame


@dataclass(frozen=True, slots=True)
class DraftText:
    """How a text stands. With a new `version` it is what it was up to `base`, then `tokens`, and nothing behind.

    With the version that is known already, `base` and `tokens` mean nothing: ids that were drafted became text.
    Positions before `confirmed` are text, what follows was only sent. Drafting goes on up to position
    `confirmed + ahead`, as long as the product of the confidences behind `confirmed` is at least `least`.
    """

    seq: int
    version: int
    base: int
    tokens: tuple[int, ...]
    confirmed: int
    ahead: int
    least: float


@dataclass(frozen=True, slots=True)
class ProposeRequest:
    """Texts that changed, and sequences that are over."""

    texts: tuple[DraftText, ...] = ()
    ended: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Whose drafts these are. `vocabulary` is the digest of its ids' tokens (`shoal.vocabulary`)."""

    name: str
    model_digest: str
    vocab_size: int
    vocabulary: str
    max_context: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ids that may follow at position `base`; for each the draft model's probability of it after the ones before."""

    seq: int
    version: int
    base: int
    tokens: tuple[int, ...]
    confidence: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProposeReply:
    """The first reply of a stream brings `model` only, the others what one step drafted.

    `step_us`: how long that step took; 0 when it says nothing of what one more draft costs.
    """

    model: DraftModel | None = None
    proposals: tuple[Proposal, ...] = ()
    step_us: int = 0


def encode_propose(request: ProposeRequest) -> pb.ProposeRequest:
    """The router's side as protobuf."""
    return pb.ProposeRequest(
        texts=[
            pb.DraftText(
                seq=text.seq,
                version=text.version,
                base=text.base,
                tokens=text.tokens,
                confirmed=text.confirmed,
                ahead=text.ahead,
                least=text.least,
            )
            for text in request.texts
        ],
        ended=request.ended,
    )


def decode_propose(message: pb.ProposeRequest) -> ProposeRequest:
    """The router's side as dataclasses."""
    return ProposeRequest(
        texts=tuple(
            DraftText(
                seq=text.seq,
                version=text.version,
                base=text.base,
                tokens=tuple(text.tokens),
                confirmed=text.confirmed,
                ahead=text.ahead,
                least=text.least,
            )
            for text in message.texts
        ),
        ended=tuple(message.ended),
    )


def encode_reply(reply: ProposeReply) -> pb.ProposeReply:
    """The draft process's side as protobuf."""
    model = reply.model
    return pb.ProposeReply(
        model=None
        if model is None
        else pb.DraftModel(
            name=model.name,
            model_digest=model.model_digest,
            vocab_size=model.vocab_size,
            vocabulary=model.vocabulary,
            max_context=model.max_context,
        ),
        proposals=[
            pb.Proposal(
                seq=each.seq, version=each.version, base=each.base, tokens=each.tokens, confidence=each.confidence
            )
            for each in reply.proposals
        ],
        step_us=reply.step_us,
    )


def decode_reply(message: pb.ProposeReply) -> ProposeReply:
    """The draft process's side as dataclasses. Raises InvalidFrame when ids and confidences differ in number."""
    model = message.model
    return ProposeReply(
        model=DraftModel(
            name=model.name,
            model_digest=model.model_digest,
            vocab_size=model.vocab_size,
            vocabulary=model.vocabulary,
            max_context=model.max_context,
        )
        if message.HasField("model")
        else None,
        proposals=tuple(_decode_proposal(each) for each in message.proposals),
        step_us=message.step_us,
    )


def _decode_proposal(message: pb.Proposal) -> Proposal:
    if len(message.tokens) != len(message.confidence):
        raise InvalidFrame(f"{len(message.tokens)} drafted ids came with {len(message.confidence)} confidences")
    return Proposal(message.seq, message.version, message.base, tuple(message.tokens), tuple(message.confidence))
