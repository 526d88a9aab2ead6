"""The messages of the draft service survive the wire."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.wire import drafts
from shoal.wire import stage_pb2 as pb
from shoal.wire.errors import InvalidFrame

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
IDS = st.lists(U32, max_size=5).map(tuple)
F32 = st.floats(width=32, allow_nan=False)

TEXT = st.builds(drafts.DraftText, seq=U64, version=U32, base=U32, tokens=IDS, confirmed=U32, ahead=U32, least=F32)
MODEL = st.builds(
    drafts.DraftModel,
    name=st.text(max_size=8),
    model_digest=st.text(max_size=8),
    vocab_size=U32,
    vocabulary=st.text(max_size=8),
    max_context=U32,
)


@st.composite
def proposals(draw: st.DrawFn) -> drafts.Proposal:
    tokens = draw(IDS)
    confidence = draw(st.lists(F32, min_size=len(tokens), max_size=len(tokens)).map(tuple))
    return drafts.Proposal(draw(U64), draw(U32), draw(U32), tokens, confidence)


@given(texts=st.lists(TEXT, max_size=3).map(tuple), ended=st.lists(U64, max_size=3).map(tuple))
@settings(max_examples=80, deadline=None)
def test_a_request_survives_the_wire(texts, ended):
    request = drafts.ProposeRequest(texts, ended)
    wire = pb.ProposeRequest.FromString(drafts.encode_propose(request).SerializeToString())
    assert drafts.decode_propose(wire) == request


@given(model=st.none() | MODEL, proposed=st.lists(proposals(), max_size=3).map(tuple), step_us=U32)
@settings(max_examples=80, deadline=None)
def test_a_reply_survives_the_wire(model, proposed, step_us):
    reply = drafts.ProposeReply(model, proposed, step_us)
    wire = pb.ProposeReply.FromString(drafts.encode_reply(reply).SerializeToString())
    assert drafts.decode_reply(wire) == reply


def test_ids_without_confidence_are_refused():
    with pytest.raises(InvalidFrame, match="2 drafted ids came with 1 confidences"):
        drafts.decode_reply(pb.ProposeReply(proposals=[pb.Proposal(tokens=[1, 2], confidence=[0.5])]))


def test_every_field_of_a_draft_message_has_a_protobuf_field():
    for cls in (
        drafts.DraftText,
        drafts.ProposeRequest,
        drafts.DraftModel,
        drafts.Proposal,
        drafts.ProposeReply,
    ):
        fields = {field.name for field in dataclasses.fields(cls)}
        assert fields == set(getattr(pb, cls.__name__).DESCRIPTOR.fields_by_name), cls.__name__
