"""Who and what was refused, by reason: the account that each part of a ring keeps and that metrics show.

A refusal is the answer to something that should not have come: a frame out of order, an epoch that is over, a stage of
another model, a caller whose certificate does not allow it. What merely failed (a lost stage, a slow one) is none.
Stages count since they started and say so with their pulse and in Describe; the router adds up what they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.errors import StageError
from shoal.wire.errors import (
    CallerRefused,
    DigestMismatch,
    InvalidFrame,
    StageUnreachable,
    StaleEpoch,
    WrongPlace,
)

HANDSHAKE: Final = "Handshake"
"""A peer without a certificate, or with one that does not fit."""

OTHER: Final = "Other"
REASONS: Final = (
    *(each.__name__ for each in (StaleEpoch, DigestMismatch, WrongPlace, InvalidFrame, CallerRefused)),
    HANDSHAKE,
)

# gRPC tells a failed handshake by its text only.
_HANDSHAKE_WORDS: Final = ("handshake failed", "Peer name", "peer certificate", "CERTIFICATE_VERIFY_FAILED")


def reason_of(error: StageError) -> str | None:
    """Why something was refused, one of REASONS; None for an error that is no refusal."""
    name = type(error).__name__
    if name in REASONS:
        return name
    if isinstance(error, StageUnreachable) and any(word in str(error) for word in _HANDSHAKE_WORDS):
        return HANDSHAKE
    return None


class RefusedPeers:
    """What the router refused, and what its stages say that they did: counts by (where, reason).

    Invariant: counts only grow, and reasons are REASONS or OTHER whatever a stage says.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._said: dict[str, dict[str, int]] = {}

    def here(self, error: StageError) -> None:
        """The router itself met `error`; counted when it is a refusal."""
        if (reason := reason_of(error)) is not None:
            self._add("router", reason, 1)

    def said(self, index: int, address: str, refused: Mapping[str, int]) -> None:
        """What the stage at `address` refused since it started. Less than it said before: it was started anew."""
        before = self._said.get(address, {})
        for reason, number in refused.items():
            known = before.get(reason, 0)
            grown = number - known if number >= known else number
            if grown:
                self._add(f"stage-{index}", reason if reason in REASONS else OTHER, grown)
        self._said[address] = dict(refused)

    def _add(self, where: str, reason: str, number: int) -> None:
        self.counts[where, reason] = self.counts.get((where, reason), 0) + number
