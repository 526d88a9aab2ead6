"""A step while it is put together, and what the scheduler remembers of it while it is in flight."""

from __future__ import annotations

from typing import NamedTuple

from shoal.wire.messages import Row, RowOutcome
from shoal_router.schedule.plan import OutcomeMismatch
from shoal_router.schedule.sequence import Sequence, SequenceState


class SentRow(NamedTuple):
    """A row in flight: it feeds its sequence up to position `end`, and draws a token if `sample`."""

    seq: Sequence
    version: int
    end: int
    sample: bool

    @property
    def is_live(self) -> bool:
        """Its result still counts: the sequence goes on, and was not computed anew since."""
        return self.seq.state is SequenceState.RUNNING and self.version == self.seq.version

    def check(self, outcome: RowOutcome | None) -> None:
        """Raises OutcomeMismatch when a token is due and the outcome does not have it."""
        if not self.sample or not self.is_live:
            return
        seq = self.seq
        if not (outcome and outcome.tokens and (outcome.version, outcome.base) == (seq.version, len(seq.tokens))):
            raise OutcomeMismatch(f"sequence {seq.id} waits for position {len(seq.tokens)}, the result is {outcome}")


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
