"""How many positions each sequence holds in an engine: the ledger behind rollback and the check for gaps."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.wire.errors import InvalidFrame
from shoal.wire.messages import Row


class Lengths:
    """Invariant: a sequence's KV is valid on [0, length). A row may start anywhere inside, never behind it.

    With `trust_first` a sequence's first row may start at any position: its block table points at pages that
    another sequence filled (prefix cache), which only the router can know.
    """

    def __init__(self, *, trust_first: bool) -> None:
        self._trust_first = trust_first
        self._lengths: dict[int, int] = {}

    @property
    def live(self) -> frozenset[int]:
        """The sequences that hold something."""
        return frozenset(self._lengths)

    def of(self, seq: int) -> int:
        """Positions held by `seq`; 0 when unknown."""
        return self._lengths.get(seq, 0)

    def check(self, row: Row) -> None:
        """Raises InvalidFrame when the row would leave a gap."""
        if self._trust_first and row.seq not in self._lengths:
            return
        held = self._lengths.get(row.seq, 0)
        if row.past_len > held:
            raise InvalidFrame(
                f"sequence {row.seq} holds {held} positions, its row starts at {row.past_len}: "
                f"positions {held} to {row.past_len - 1} are missing"
            )

    def advance(self, row: Row) -> None:
        """Note that the row was run: what lay behind it is forgotten."""
        self._lengths[row.seq] = row.past_len + len(row.tokens)

    def release(self, seqs: Iterable[int]) -> None:
        """Forget the sequences; unknown ones are ignored."""
        for seq in seqs:
            self._lengths.pop(seq, None)
