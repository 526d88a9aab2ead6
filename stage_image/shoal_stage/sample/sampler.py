"""Sampling and verification on the last stage: from a step's logits to the ids that return to the router.

A row with drafts is verified by drawing: each sampled position is drawn as if no draft existed, and the row ends at
the first draft that differs from what was drawn. Since draws depend on (seed, position) alone, the text is the one
that plain decoding gives, greedy or sampled, whatever the drafts were.

Rows of one sequence may follow each other before the first is answered. What a row drew past a wrong draft of an
earlier one is stale, and the router ignores it; the state it left goes with the next row's lower `past_len`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.wire.errors import InvalidFrame
from shoal.wire.messages import Row, RowOutcome, SamplingParams, TokenLogprob
from shoal_stage.sample.draw import draw, greedy, logprob
from shoal_stage.sample.penalties import Context


@dataclass(slots=True)
class _Sequence:
    params: SamplingParams
    context: Context


class Sampler:
    """The sampling state of one epoch's sequences. Called by the compute thread only."""

    def __init__(self) -> None:
        self._sequences: dict[int, _Sequence] = {}

    @property
    def live(self) -> frozenset[int]:
        """The sequences whose state is kept."""
        return frozenset(self._sequences)

    def release(self, seqs: Iterable[int]) -> None:
        """Forget the sequences; unknown ones are ignored."""
        for seq in seqs:
            self._sequences.pop(seq, None)

    def sample(self, rows: Sequence[Row], logits: NDArray[np.float32]) -> tuple[RowOutcome, ...]:
        """Draw for every row with `sample`; `logits` [S, V] stand in the order of the rows' sampled positions."""
        outcomes: list[RowOutcome] = []
        at = 0
        for row in rows:
            sequence = self._sequence(row)
            if not row.sample:
                sequence.context.rewind(row.past_len)
                sequence.context.extend(row.tokens)
                continue
            count = len(row.sampled)
            outcomes.append(self._verify(row, sequence, logits[at : at + count]))
            at += count
        return tuple(outcomes)

    def _sequence(self, row: Row) -> _Sequence:
        if row.start is not None:
            sequence = _Sequence(row.start.params, Context(row.start, row.past_len))
            self._sequences[row.seq] = sequence
            return sequence
        try:
            return self._sequences[row.seq]
        except KeyError:
            raise InvalidFrame(f"sequence {row.seq} was never started: its first row brings no parameters") from None

    @staticmethod
    def _verify(row: Row, sequence: _Sequence, logits: NDArray[np.float32]) -> RowOutcome:
        params, context, tokens = sequence.params, sequence.context, row.tokens
        first = row.sampled.start
        plain = context.plain and params.logprobs is None
        drawn: list[int] = []
        scores: list[TokenLogprob] = []
        context.rewind(row.past_len)
        context.extend(tokens[:first])
        for number, index in enumerate(range(first, len(tokens))):
            context.extend(tokens[index : index + 1])
            if plain and params.temperature == 0.0:
                token = greedy(logits[number])
            else:
                adjusted = context.adjust(logits[number])
                token = draw(adjusted, params, row.past_len + index + 1)
                if params.logprobs is not None:
                    scores.append(logprob(adjusted, token, params.logprobs))
            drawn.append(token)
            if index + 1 < len(tokens) and index + 1 >= row.known and token != tokens[index + 1]:
                break
        return RowOutcome(row.seq, row.version, row.past_len + first + 1, tuple(drawn), tuple(scores))
