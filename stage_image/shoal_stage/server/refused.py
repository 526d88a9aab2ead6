"""What this stage has refused since it started: frames and calls by the error, peers by their handshake.

gRPC does not tell a server of handshakes that failed; it only asks for the certificate before each one. So a peer is
refused when it began a handshake and no call of it came within HANDSHAKE_SECONDS: a stranger, or whoever opens a
connection to a port of mutual TLS and has nothing to say there.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final

from shoal.errors import StageError
from shoal.wire.refused import HANDSHAKE, reason_of

HANDSHAKE_SECONDS: Final = 10.0
_REMEMBERED: Final = 1024


class Handshakes:
    """Invariant: `_begun` holds the handshakes of which no call has come yet, the oldest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: deque[float] = deque()
        self._peers: OrderedDict[str, None] = OrderedDict()
        self._refused = 0

    def begun(self) -> None:
        """A peer connects. On a thread of gRPC's: appending to a deque needs no lock."""
        self._begun.append(self._clock())

    def heard(self, peer: str) -> None:
        """A call of `peer`, the address of its connection, came through."""
        if peer in self._peers:
            return
        self._peers[peer] = None
        if len(self._peers) > _REMEMBERED:
            self._peers.popitem(last=False)
        self._expire()
        if self._begun:
            self._begun.popleft()

    @property
    def refused(self) -> int:
        """Peers that got no further."""
        self._expire()
        return self._refused

    def _expire(self) -> None:
        over = self._clock() - HANDSHAKE_SECONDS
        while self._begun and self._begun[0] <= over:
            self._begun.popleft()
            self._refused += 1


class Refused:
    """Counts by reason, for Describe and the pulse."""

    def __init__(self, handshakes: Handshakes | None = None) -> None:
        self._counts: Counter[str] = Counter()
        self._handshakes = handshakes or Handshakes()

    def count(self, error: StageError) -> None:
        """`error` is what something was answered with."""
        self._counts[reason_of(error) or type(error).__name__] += 1

    def totals(self) -> dict[str, int]:
        """All counts since the start."""
        peers = self._handshakes.refused
        return {**self._counts, HANDSHAKE: self._counts[HANDSHAKE] + peers} if peers else dict(self._counts)
