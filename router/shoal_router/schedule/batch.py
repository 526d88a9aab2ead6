"""A step while it is put together, and what the scheduler remembers of it while it is in flight."""

from __future__ import annotations

from typing import NamedTuple

from shoal.wire.messages import Row
from shoal_router.schedule.sequence import Sequence


class SentRow(NamedTuple):
    """A row in flight: it feeds its sequence up to position `end`, and draws a token if `sample`."""

    seq: Sequence
    version: int
    end: int
    sample: bool


class SentStep(NamedTuple):
    """A step in flight. `decodes`: it counts as a micro-batch, not only as a prompt's chunk."""

    rows: list[SentRow]
    decodes: bool


class Batch:
    """The rows of one step. Adding a sequence advances it: from then on its row counts as in flight."""

    def __init__(self, *, with_tables: bool) -> None:
        self.rows: list[Row] = []
        self.sent: list[SentRow] = []
        self._with_tables = with_tables

    def add(self, seq: Sequence, length: int) -> None:
        """Feed the next `length` committed ids of the sequence; the row that feeds the last one draws its successor."""
        start = seq.num_computed
        end = start + length
        sample = end == len(seq.tokens)
        self.rows.append(
            Row(
                seq=seq.id,
                version=seq.version,
                past_len=start,
                tokens=tuple(seq.tokens[start:end]),
                known=length,
                sample=sample,
                slot=seq.slot,
                blocks=tuple(seq.blocks) if self._with_tables else (),
                start=None if seq.introduced else seq.introduction(),
            )
        )
        self.sent.append(SentRow(seq, seq.version, end, sample))
        seq.num_computed = end
        seq.in_flight += 1
