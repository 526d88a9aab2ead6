"""A step while it is put together, and what the scheduler remembers of it while it is in flight."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from shoal.wire.messages import Row, RowOutcome
from shoal_router.schedule.plan import OutcomeMismatch
from shoal_router.schedule.sequence import Guess, Sequence, SequenceState


class SentRow(NamedTuple):
    """A row in flight: it feeds its sequence up to position `end`, and draws if `sample`.

    The first draw is judged by `guessed[0]`, the next by `guessed[1]`, … and the reply ends at the first that differs;
    the last draw of a row that was right throughout has no guess in this row.
    """

    seq: Sequence
    version: int
    end: int
    sample: bool
    guessed: tuple[int, ...]

    @property
    def is_live(self) -> bool:
        """Its result still counts: the sequence goes on, and nothing before the row turned out otherwise."""
        return self.seq.state is SequenceState.RUNNING and self.version == self.seq.version

    def check(self, outcome: RowOutcome | None) -> None:
        """Raises OutcomeMismatch when tokens are due and the outcome does not have them, or has others than it may."""
        if not self.sample or not self.is_live:
            return
        seq = self.seq
        if outcome and outcome.error and (outcome.version, outcome.base) == (seq.version, len(seq.tokens)):
            return
        if not (outcome and outcome.tokens and (outcome.version, outcome.base) == (seq.version, len(seq.tokens))):
            raise OutcomeMismatch(f"sequence {seq.id} waits for position {len(seq.tokens)}, the result is {outcome}")
        right = outcome.tokens[:-1] == self.guessed[: len(outcome.tokens) - 1]
        ended = outcome.tokens[-1:] != self.guessed[len(outcome.tokens) - 1 : len(outcome.tokens)]
        if not (right and ended and len(outcome.tokens) <= len(self.guessed) + 1):
            raise OutcomeMismatch(f"sequence {seq.id} sent the drafts {self.guessed}, the result is {outcome}")


class SentStep(NamedTuple):
    """A step in flight. `decodes`: it counts as a micro-batch; `ahead`: nothing in it but a row of guesses, beside the
    micro-batches. `tokens` it feeds, none of a prompt if `measures`; `sent` when.
    """

    rows: list[SentRow]
    decodes: bool
    ahead: bool
    measures: bool
    tokens: int
    sent: float


class Batch:
    """The rows of one step. Adding a sequence advances it: from then on its row counts as in flight."""

    def __init__(self, *, with_tables: bool) -> None:
        self.rows: list[Row] = []
        self.sent: list[SentRow] = []
        self.tokens = 0
        self._with_tables = with_tables

    def add(self, seq: Sequence, length: int, guesses: SequenceOf[Guess] = ()) -> None:
        """Feed the next `length` committed ids of the sequence, and the guesses behind them.

        The row that feeds the last committed id draws its successor; one without any, which runs ahead, the successors
        of its guesses.
        """
        start = seq.num_computed
        known = start + length
        sample = known >= len(seq.tokens)
        tokens = (*seq.tokens[start:known], *(guess.token for guess in guesses))
        end = start + len(tokens)
        self.tokens += len(tokens)
        self.rows.append(
            Row(
                seq=seq.id,
                version=seq.version,
                past_len=start,
                tokens=tokens,
                known=length,
                sample=sample,
                slot=seq.slot,
                blocks=tuple(seq.blocks) if self._with_tables else (),
                start=None if seq.introduced else seq.introduction(),
            )
        )
        self.sent.append(SentRow(seq, seq.version, end, sample, tokens[max(length, 1) :] if guesses else ()))
        seq.guesses.extend(guesses)
        seq.num_computed = end
        seq.in_flight += 1
        seq.awaited += sample
