"""The codec: every message survives the wire, and what cannot mean anything is refused."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.wire import codec, messages
from shoal.wire import stage_pb2 as pb
from shoal.wire.errors import InvalidFrame

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
IDS = st.lists(U32, max_size=5).map(tuple)
F32 = st.floats(width=32, allow_nan=False)
F64 = st.floats(allow_nan=False)

PARAMS = st.builds(
    messages.SamplingParams,
    temperature=F64,
    top_p=F64,
    top_k=U32,
    min_p=F64,
    repetition_penalty=F64,
    presence_penalty=F64,
    frequency_penalty=F64,
    logit_bias=st.lists(st.tuples(U32, F32), max_size=3).map(tuple),
    seed=U64,
    logprobs=st.none() | U32,
)
START = st.builds(messages.SequenceStart, params=PARAMS, prompt_len=U32, history=IDS, request_id=st.text(max_size=9))
TIMING = st.builds(messages.StageTiming, stage=U32, compute_us=U32, queue_us=U32, idle_us=U32, send_us=U32)


@st.composite
def rows(draw: st.DrawFn) -> messages.Row:
    tokens = tuple(draw(st.lists(U32, min_size=1, max_size=6)))
    return messages.Row(
        seq=draw(U64),
        version=draw(U32),
        past_len=draw(U32),
        tokens=tokens,
        known=draw(st.integers(0, len(tokens))),
        sample=draw(st.booleans()),
        slot=draw(U32),
        blocks=draw(IDS),
        start=draw(st.none() | START),
    )


@st.composite
def steps(draw: st.DrawFn) -> messages.Step:
    batch = tuple(draw(st.lists(rows(), min_size=1, max_size=4)))
    fed = sum(len(row.tokens) for row in batch)
    hidden = draw(st.none() | hnp.arrays(np.float32, (fed, 8), elements=F32))
    return messages.Step(rows=batch, hidden=hidden, timings=draw(st.lists(TIMING, max_size=3).map(tuple)))


BODIES = (
    steps()
    | st.builds(messages.Release, seqs=st.lists(U64, max_size=4).map(tuple))
    | st.builds(messages.Heartbeat, nonce=U64)
)


@st.composite
def outcomes(draw: st.DrawFn) -> messages.RowOutcome:
    tokens = draw(IDS)
    score = st.builds(messages.TokenLogprob, logprob=F32, top=st.lists(st.tuples(U32, F32), max_size=2).map(tuple))
    size = len(tokens)
    logprobs = draw(st.just(()) | st.lists(score, min_size=size, max_size=size).map(tuple))
    return messages.RowOutcome(draw(U64), draw(U32), draw(U32), tokens, logprobs)


def over_the_wire(frame: messages.Frame, dtype: messages.DType = messages.DType.F32) -> messages.Frame:
    return codec.decode_frame(pb.Frame.FromString(codec.encode_frame(frame, dtype).SerializeToString()))


@given(epoch=U64, number=U64, body=BODIES)
@settings(max_examples=150, deadline=None)
def test_a_frame_survives_the_wire(epoch, number, body):
    back = over_the_wire(messages.Frame(epoch, number, body))
    assert (back.epoch, back.number) == (epoch, number)
    if isinstance(body, messages.Step):
        assert isinstance(back.body, messages.Step)
        assert back.body.rows == body.rows
        assert back.body.timings == body.timings
        if body.hidden is None:
            assert back.body.hidden is None
        else:
            assert back.body.hidden is not None
            np.testing.assert_array_equal(back.body.hidden, body.hidden)
    else:
        assert back.body == body


@given(
    epoch=U64,
    number=U64,
    out=st.lists(outcomes(), max_size=3).map(tuple),
    timings=st.lists(TIMING, max_size=3).map(tuple),
    heartbeat=st.none() | U64,
)
@settings(max_examples=100, deadline=None)
def test_a_result_survives_the_wire(epoch, number, out, timings, heartbeat):
    result = messages.StepResult(epoch, number, out, timings, heartbeat)
    assert codec.decode_result(pb.StepResult.FromString(codec.encode_result(result).SerializeToString())) == result


def test_description_and_open_survive_the_wire():
    description = messages.StageDescription(
        model_digest="a" * 64,
        block_start=0,
        block_end=16,
        blocks_in_model=32,
        state=messages.StageState.LOADING,
        epoch=3,
        engine="paged",
        device="CPU",
        execution_devices=("CPU",),
        exact=True,
        hidden_size=576,
        vocab_size=49152,
        max_frame_bytes=1 << 22,
        capacity=messages.KvCapacity(4, 128, 32, 2048, 1 << 20, True),
        versions={"openvino": "x"},
        detail="3/16 blocks",
    )
    request = messages.OpenRequest(9, 1, 3, "b" * 64, 16, 32, "10.0.0.7:7001", messages.DType.BF16, 1 << 20)
    reply = messages.OpenReply(9)
    without = dataclasses.replace(description, capacity=None)
    for sent in (description, without):
        wire = pb.StageDescription.FromString(codec.encode_description(sent).SerializeToString())
        assert codec.decode_description(wire) == sent
    assert codec.decode_open(pb.OpenRequest.FromString(codec.encode_open(request).SerializeToString())) == request
    assert codec.decode_open_reply(codec.encode_open_reply(reply)) == reply


def test_every_dataclass_field_has_a_protobuf_field():
    pairs = {
        messages.Frame: {"body"},
        messages.Row: set(),
        messages.SequenceStart: set(),
        messages.SamplingParams: set(),
        messages.StageTiming: set(),
        messages.StepResult: set(),
        messages.RowOutcome: set(),
        messages.KvCapacity: set(),
        messages.StageDescription: set(),
        messages.StageProgress: set(),
        messages.OpenRequest: set(),
        messages.OpenReply: set(),
    }
    for cls, other in pairs.items():
        fields = {field.name for field in dataclasses.fields(cls)} - other
        on_wire = set(getattr(pb, cls.__name__).DESCRIPTOR.fields_by_name)
        assert fields <= on_wire, cls.__name__
        assert not on_wire - fields - {"step", "release", "heartbeat"} - ({"heartbeat"} & fields), cls.__name__


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(messages.DType.F16, np.float16), (messages.DType.BF16, ml_dtypes.bfloat16)],
)
def test_half_precision_rounds_once(dtype, kind):
    hidden = np.linspace(-3, 3, 24, dtype=np.float32).reshape(3, 8)
    row = messages.Row(seq=1, version=0, past_len=0, tokens=(1, 2, 3), known=3, sample=True)
    back = over_the_wire(messages.Frame(0, 0, messages.Step((row,), hidden)), dtype)
    assert isinstance(back.body, messages.Step)
    np.testing.assert_array_equal(back.body.hidden, hidden.astype(kind).astype(np.float32))


def frame_of(step: pb.Step) -> pb.Frame:
    return pb.Frame(epoch=1, number=1, step=step)


GOOD_ROW = pb.Row(seq=1, tokens=[4, 5], known=2, sample=True)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.Frame(epoch=1, number=7), "no body"),
        (frame_of(pb.Step()), "at least one row"),
        (frame_of(pb.Step(rows=[pb.Row(seq=3)])), "feeds no token"),
        (frame_of(pb.Step(rows=[pb.Row(seq=3, tokens=[1], known=2)])), "knows 2 of 1"),
        (
            frame_of(pb.Step(rows=[GOOD_ROW], hidden=pb.Hidden(tokens=2, width=4, data=b"\0" * 31))),
            r"need 32 bytes, got 31",
        ),
        (
            frame_of(pb.Step(rows=[GOOD_ROW], hidden=pb.Hidden(tokens=1, width=4, data=b"\0" * 16))),
            "hidden states came for 1",
        ),
    ],
)
def test_a_frame_that_cannot_mean_anything_is_refused(message, words):
    with pytest.raises(InvalidFrame, match=words):
        codec.decode_frame(message)


def test_unknown_dtype_state_and_logprob_count_are_refused():
    hidden = pb.Hidden.FromString(pb.Hidden(tokens=2, width=1, data=b"\0" * 8).SerializeToString() + b"\x08\x09")
    with pytest.raises(InvalidFrame, match="dtype 9"):
        codec.decode_frame(frame_of(pb.Step(rows=[GOOD_ROW], hidden=hidden)))
    with pytest.raises(InvalidFrame, match="'SLEEPING'"):
        codec.decode_description(pb.StageDescription(state="SLEEPING"))
    outcome = pb.RowOutcome(tokens=[1, 2], logprobs=[pb.TokenLogprob()])
    with pytest.raises(InvalidFrame, match="2 tokens came with 1 logprobs"):
        codec.decode_result(pb.StepResult(outcomes=[outcome]))


def test_a_row_knows_what_is_sampled():
    row = messages.Row(seq=1, version=0, past_len=9, tokens=(1, 2, 3, 4), known=2, sample=True)
    assert (row.n_draft, list(row.sampled)) == (2, [1, 2, 3])
    ahead = dataclasses.replace(row, known=0)
    assert list(ahead.sampled) == [0, 1, 2, 3]
    assert not dataclasses.replace(row, sample=False).sampled
