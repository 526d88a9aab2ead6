"""What a stage refuses, and that a refused frame changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import StageError
from shoal.wire.errors import DigestMismatch, InvalidFrame, StageExhausted, StaleEpoch, WrongPlace
from shoal.wire.messages import (
    DType,
    Frame,
    Heartbeat,
    KvCapacity,
    OpenRequest,
    Release,
    Row,
    SamplingParams,
    SequenceStart,
    Step,
)
from shoal_stage.server.place import Held, Place, check_open

PAGED = KvCapacity(sequences=3, blocks=6, block_size=4, max_context=16, bytes=0, shares_blocks=True)
SLOTS = replace(PAGED, shares_blocks=False)
HELD = Held("d" * 64, 0, 4, 8, hidden_size=8, vocab_size=50, max_frame_bytes=1000, capacity=PAGED)
MIDDLE = replace(HELD, block_start=2)
STATEFUL = replace(HELD, capacity=SLOTS)
START = SequenceStart(SamplingParams(), 2)
OPEN = OpenRequest(
    epoch=5,
    stage_index=0,
    stages=2,
    model_digest="d" * 64,
    block_start=0,
    block_end=4,
    next_address="10.0.0.2:50051",
    hidden_dtype=DType.F32,
    max_frame_bytes=1000,
)


def row(seq: int = 1, **changes: object) -> Row:
    fields: dict[str, object] = {
        "seq": seq,
        "version": 0,
        "past_len": 0,
        "tokens": (1, 2),
        "known": 2,
        "sample": True,
        "slot": seq - 1,
        "blocks": (2 * seq - 2, 2 * seq - 1),
        "start": START,
    }
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


def step(*rows: Row, hidden: object = None) -> Step:
    return Step(rows or (row(),), hidden)  # type: ignore[arg-type]


def place(held: Held = HELD, *bodies: Step | Release | Heartbeat) -> Place:
    """A place that accepted these bodies as its first frames."""
    made = Place(7, held)
    for number, body in enumerate(bodies):
        made.accept(Frame(7, number, body))
    return made


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"epoch": 4}, StaleEpoch, "already serves epoch 4"),
        ({"model_digest": "e" * 64}, DigestMismatch, "eeeeeeeeeeee"),
        ({"block_end": 5}, WrongPlace, "blocks 0:5"),
        ({"stage_index": 2}, WrongPlace, "index 2"),
        ({"stage_index": 1}, WrongPlace, "cannot be stage 2 of 2"),
        ({"stages": 1}, WrongPlace, "cannot be stage 1 of 1"),
        ({"next_address": ""}, WrongPlace, "next hop"),
        ({"max_frame_bytes": 1001}, WrongPlace, "1001 bytes"),
    ],
)
def test_open_is_refused_with_its_reason(changes: dict[str, object], error: type[StageError], words: str) -> None:
    check_open(OPEN, HELD, 4)
    with pytest.raises(error, match=words):
        check_open(replace(OPEN, **changes), HELD, 4)  # type: ignore[arg-type]


BAD_STEPS = [
    (HELD, step(hidden=np.zeros((2, 8), np.float32)), "takes token ids"),
    (MIDDLE, step(), "none came"),
    (MIDDLE, step(hidden=np.zeros((2, 7), np.float32)), "width 7"),
    (HELD, step(row(), row()), "two rows"),
    (HELD, step(row(tokens=(1, 50))), "vocabulary has 50"),
    (HELD, step(row(tokens=tuple(range(17)), known=17)), "ends at position 17"),
    (HELD, step(row(start=None)), "no sampling parameters"),
    (HELD, step(row(blocks=())), "needs 1 KV blocks, 0 came"),
    (HELD, step(row(blocks=(6,))), "block 6 of 6"),
    (HELD, step(row(start=replace(START, history=(1,)))), "1 ids of history"),
    (HELD, step(row(past_len=1, start=replace(START, history=(99,)))), "id 99"),
    (HELD, step(row(start=SequenceStart(SamplingParams(logit_bias=((77, 1.0),)), 2))), "id 77"),
    (HELD, step(row(start=SequenceStart(SamplingParams(temperature=float("nan")), 2))), "out of range"),
    (HELD, step(row(start=SequenceStart(SamplingParams(top_p=0.0), 2))), "out of range"),
    (HELD, step(row(start=SequenceStart(SamplingParams(presence_penalty=float("nan")), 2))), "out of range"),
    (HELD, step(row(start=SequenceStart(SamplingParams(frequency_penalty=float("inf")), 2))), "out of range"),
    (HELD, step(row(start=SequenceStart(SamplingParams(logit_bias=((1, float("nan")),)), 2))), "out of range"),
    (HELD, step(row(start=SequenceStart(SamplingParams(repetition_penalty=0.0), 2))), "repetition_penalty"),
    (HELD, step(row(start=SequenceStart(SamplingParams(repetition_penalty=float("inf")), 2))), "repetition_penalty"),
    (HELD, step(row(start=SequenceStart(SamplingParams(repetition_penalty=1e-40), 2))), "repetition_penalty"),
    (STATEFUL, step(row(slot=3)), "slot 3 of 3"),
    (STATEFUL, step(row(past_len=1)), "share nothing"),
    (STATEFUL, step(row(1, slot=0), row(2, slot=0)), "slot 0 is given"),
]


@pytest.mark.parametrize(("held", "body", "words"), BAD_STEPS)
def test_a_bad_step_is_refused_and_changes_nothing(held: Held, body: Step, words: str) -> None:
    fresh = place(held)
    with pytest.raises(InvalidFrame, match=words):
        fresh.accept(Frame(7, 0, body))
    assert fresh.live == ()
    fresh.accept(Frame(7, 0, Heartbeat(1)))


LATER = [
    (HELD, step(row(version=1)), "already held"),
    (HELD, step(row(start=None, past_len=3, tokens=(1,), known=1, version=1)), "only 2 are held"),
    (HELD, step(row(start=None, past_len=2, version=0)), "version 0 after version 1"),
    (STATEFUL, step(row(start=None, past_len=2, version=1, slot=2)), "is in slot 0"),
    (STATEFUL, step(row(2, slot=0)), "holds sequence 1"),
]


@pytest.mark.parametrize(("held", "body", "words"), LATER)
def test_a_step_that_contradicts_earlier_ones_is_refused(held: Held, body: Step, words: str) -> None:
    later = place(held, step(row(version=1)))
    with pytest.raises(InvalidFrame, match=words):
        later.accept(Frame(7, 1, body))
    later.accept(Frame(7, 1, step(row(start=None, past_len=2, tokens=(3,), known=1, version=1))))
    assert later.live == (1,)


def test_frames_of_other_epochs_and_out_of_order_are_refused() -> None:
    here = place(HELD, Heartbeat(1))
    with pytest.raises(StaleEpoch, match="epoch 6"):
        here.accept(Frame(6, 1, Heartbeat(2)))
    for number in (0, 2):
        with pytest.raises(InvalidFrame, match=f"frame {number} is out of order: frame 1 is due"):
            here.accept(Frame(7, number, Heartbeat(2)))
    here.accept(Frame(7, 1, Heartbeat(2)))


def test_more_sequences_than_the_stage_holds_are_refused_until_one_is_released() -> None:
    full = place(HELD, step(row(1), row(2), row(3)))
    with pytest.raises(StageExhausted, match="holds 3"):
        full.accept(Frame(7, 1, step(row(4, blocks=(0,)))))
    full.accept(Frame(7, 1, Release((2, 2, 77))))
    full.accept(Frame(7, 2, step(row(4, blocks=(2,)))))
    assert full.live == (1, 3, 4)


def test_a_freed_slot_may_be_given_to_another_sequence() -> None:
    here = place(STATEFUL, step(row(1)), Release((1,)))
    here.accept(Frame(7, 2, step(row(2, slot=0))))
    assert here.live == (2,)


def test_a_rollback_lowers_what_is_held() -> None:
    here = place(HELD, step(row()), step(row(start=None, past_len=1, tokens=(9,), known=1)))
    with pytest.raises(InvalidFrame, match="only 2 are held"):
        here.accept(Frame(7, 2, step(row(start=None, past_len=3, tokens=(9,), known=1))))
    here.accept(Frame(7, 2, step(row(start=None, past_len=2, tokens=(9,), known=1))))


@given(st.lists(st.sampled_from(range(len(BAD_STEPS))), max_size=6), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_refused_frames_leave_the_accepted_ones_as_they_were(bad: list[int], good: int) -> None:
    here, number = Place(7, HELD), 0
    for index in bad:
        held, body, _ = BAD_STEPS[index]
        if held is HELD:
            with pytest.raises(StageError):
                here.accept(Frame(7, number, body))
        if number < good:
            here.accept(Frame(7, number, step(row(number + 10, blocks=(number,)))))
            number += 1
    assert here.live == tuple(range(10, number + 10))
