"""Strikes: a listener counts its own ticks, and any word of the other side starts the count anew."""

from __future__ import annotations

import asyncio

import pytest

from shoal.wire.codec import decode_progress, encode_credit
from shoal.wire.messages import StageProgress
from shoal.wire.pulse import PULSE_SECONDS, STRIKES, Strikes, silence


def test_the_other_side_is_out_after_so_many_ticks_without_a_word() -> None:
    strikes = Strikes(3)
    assert [strikes.tick() for _ in range(3)] == [False, False, True]


def test_case_5_a_word_forgives_what_was_missed_before() -> None:
    strikes = Strikes(3)
    for _ in range(50):
        assert not strikes.tick()
        assert not strikes.tick()
        strikes.heard()


def test_by_default_silence_is_over_within_three_seconds_and_two_are_forgiven() -> None:
    assert 2.0 + PULSE_SECONDS < (STRIKES - 1) * PULSE_SECONDS, "the gap is up to a pulse longer than the stall"
    assert STRIKES * PULSE_SECONDS <= 2.75


async def test_silence_returns_when_the_other_side_is_out() -> None:
    async with asyncio.timeout(5):
        await silence(Strikes(3), 0.001)


@pytest.mark.parametrize(
    "progress", [(), (StageProgress(0, 5, 12), StageProgress(1, 4, 0, draining=True, refused={"InvalidFrame": 2}))]
)
def test_a_pulse_survives_the_wire(progress: tuple[StageProgress, ...]) -> None:
    message = encode_credit(3, progress)
    assert message.frames == 3
    assert decode_progress(message) == progress
