"""Who waits for memory: first come, first served, bounded, with an estimate of when it is worth to come back."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

from shoal_router.generation import QueueFull
from shoal_router.schedule.sequence import Sequence

_WEIGHT = 0.2  # of the newest sequence in the moving average of how long one runs
_SHORTEST_RETRY = 1.0
_LONGEST_RETRY = 60.0


class WaitingQueue:
    """Invariant: ordered by arrival, so that a sequence that was preempted stands before all that came after it."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._sequences: list[Sequence] = []
        self._service_seconds: float | None = None

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def check_room(self, slots: int, free_slots: int) -> None:
        """Raises QueueFull when as many wait as may, beside those that will have a free slot at once."""
        waiting = len(self._sequences)
        if waiting >= self._bound + free_slots:
            estimate = (self._service_seconds or 0.0) * (waiting + 1) / slots
            retry_after = min(max(estimate, _SHORTEST_RETRY), _LONGEST_RETRY)
            raise QueueFull(f"{waiting} requests wait already: try again in {retry_after:.0f} s", retry_after)

    def learn(self, seconds: float) -> None:
        """A sequence ended by itself, `seconds` after it had left the queue."""
        mean = self._service_seconds
        self._service_seconds = seconds if mean is None else (1 - _WEIGHT) * mean + _WEIGHT * seconds

    def put(self, seq: Sequence) -> None:
        """Take a sequence in, at its place."""
        insort(self._sequences, seq, key=lambda other: other.id)

    def refill(self, seqs: Iterable[Sequence]) -> None:
        """Replace all that wait."""
        self._sequences = sorted(seqs, key=lambda seq: seq.id)

    @property
    def head(self) -> Sequence | None:
        """The one that is next."""
        return self._sequences[0] if self._sequences else None

    def remove(self, seq: Sequence) -> None:
        """It was admitted, or is over."""
        self._sequences.remove(seq)
