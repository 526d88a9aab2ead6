"""A network link's arithmetic: when a piece of a TCP stream that leaves now arrives. Pure: time is an argument.

A stream keeps its order, so nothing overtakes: a late piece holds up those behind it. A lost packet is not missing from
a TCP stream, it stalls it until it was sent again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import inf

PACKET_BYTES = 1448
"""Payload of a TCP segment on Ethernet: what is lost as one."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link. `delay` and `jitter` in seconds, `jitter` the most that a piece is earlier or later.

    `loss` is the probability that a packet is lost; each loss stalls the stream for `resend` seconds.
    """

    delay: float = 0.0
    jitter: float = 0.0
    bytes_per_second: float = inf
    loss: float = 0.0
    resend: float = 0.25


@dataclass(slots=True, eq=False)
class Wire:
    """The state of one direction. Invariant: arrivals never decrease."""

    link: Link
    random: random.Random
    _sent: float = field(default=0.0, init=False)
    _arrived: float = field(default=0.0, init=False)

    def arrival(self, now: float, size: int) -> float:
        """When `size` bytes that are handed over now have all arrived."""
        link = self.link
        self._sent = max(self._sent, now) + size / link.bytes_per_second
        flight = max(0.0, link.delay + self.random.uniform(-link.jitter, link.jitter))
        packets = -(-size // PACKET_BYTES)
        lost = sum(self.random.random() < link.loss for _ in range(packets)) if link.loss else 0
        self._arrived = max(self._arrived, self._sent + flight + lost * link.resend)
        return self._arrived

    def stall(self, until: float) -> None:
        """Nothing that is handed over from now on arrives before `until`."""
        self._arrived = max(self._arrived, until)
