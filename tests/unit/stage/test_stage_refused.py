"""What a stage has refused: errors by their reason, and peers that began a handshake and said nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.errors import CallerRefused, InvalidFrame
from shoal_stage.server.refused import HANDSHAKE_SECONDS, Handshakes, Refused


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_peer_that_says_nothing_is_counted_when_its_time_is_up() -> None:
    clock = Clock()
    handshakes = Handshakes(clock)
    handshakes.begun()
    assert handshakes.refused == 0
    clock.now = HANDSHAKE_SECONDS
    assert handshakes.refused == 1
    handshakes.heard("ipv4:10.0.0.1:5")
    assert handshakes.refused == 1, "it comes too late"


def test_a_peer_that_calls_is_not_and_calls_again_without_effect() -> None:
    clock = Clock()
    handshakes = Handshakes(clock)
    handshakes.begun()
    handshakes.begun()
    for _ in range(5):
        handshakes.heard("ipv4:10.0.0.1:5")
    clock.now = HANDSHAKE_SECONDS
    assert handshakes.refused == 1


@given(st.lists(st.sampled_from(["friend", "stranger", "wait"]), max_size=60))
def test_as_many_are_counted_as_were_strangers(peers: list[str]) -> None:
    clock = Clock()
    handshakes = Handshakes(clock)
    for number, peer in enumerate(peers):
        if peer == "wait":
            clock.now += HANDSHAKE_SECONDS
            continue
        handshakes.begun()
        if peer == "friend":
            handshakes.heard(f"ipv4:10.0.0.1:{number}")
    clock.now += HANDSHAKE_SECONDS
    assert handshakes.refused == peers.count("stranger")


def test_totals_hold_errors_and_peers() -> None:
    clock = Clock()
    handshakes = Handshakes(clock)
    refused = Refused(handshakes)
    assert refused.totals() == {}
    refused.count(InvalidFrame("x"))
    refused.count(InvalidFrame("y"))
    refused.count(CallerRefused("z"))
    handshakes.begun()
    clock.now = HANDSHAKE_SECONDS
    assert refused.totals() == {"InvalidFrame": 2, "CallerRefused": 1, "Handshake": 1}
