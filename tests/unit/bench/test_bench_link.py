"""When bytes arrive: delay, bandwidth, jitter that keeps the order, losses that stall."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.link import PACKET_BYTES, Link, Wire


def wire(**link) -> Wire:
    return Wire(Link(**link), random.Random(1))


def test_a_piece_arrives_after_the_delay():
    assert wire(delay=0.1).arrival(5.0, 1000) == pytest.approx(5.1)


def test_pieces_queue_for_the_bandwidth():
    narrow = wire(delay=0.1, bytes_per_second=1000)
    assert narrow.arrival(0.0, 500) == pytest.approx(0.6)
    assert narrow.arrival(0.0, 500) == pytest.approx(1.1)
    assert narrow.arrival(10.0, 500) == pytest.approx(10.6)


def test_a_lost_packet_stalls_the_stream_and_what_is_behind_it():
    lossy = wire(delay=0.1, loss=1.0, resend=0.25)
    assert lossy.arrival(0.0, 2 * PACKET_BYTES) == pytest.approx(0.6)
    lossy.link = Link(delay=0.1)
    assert lossy.arrival(0.1, 1) == pytest.approx(0.6)


def test_nothing_arrives_during_a_stall():
    stalled = wire(delay=0.1)
    stalled.stall(3.0)
    assert stalled.arrival(0.0, 1) == pytest.approx(3.0)
    assert stalled.arrival(2.95, 1) == pytest.approx(3.05)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10_000)), min_size=1),
    st.floats(0, 0.2),
    st.floats(0, 0.3),
    st.floats(0, 0.5),
)
def test_arrivals_keep_their_order_and_are_never_early(pieces, delay, jitter, loss):
    link = wire(delay=delay, jitter=jitter, loss=loss)
    now = before = 0.0
    for pause, size in pieces:
        now += pause
        arrival = link.arrival(now, size)
        assert arrival >= before
        assert arrival >= now + max(0.0, delay - jitter) - 1e-9
        before = arrival
