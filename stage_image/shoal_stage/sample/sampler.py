"""Sampling and verification on the last stage: from a step's logits to the ids that return to the router.

A row with drafts is verified by drawing: each sampled position is drawn as if no draft existed, and the row ends at
the first draft that differs from what was drawn. Since draws depend on (seed, position) alone, the text is the one
that plain decoding gives, greedy or sampled, whatever the drafts were.

A sequence with a grammar draws among the ids that the grammar allows: the mask comes last, after penalties and bias.
Its masks are begun before the forward pass (`prepare`) and waited for behind it (grammar.py).

Rows of one sequence may follow each other before the first is answered. What a row drew past a wrong draft of an
earlier one is stale, and the router ignores it; the state it left goes with the next row's lower `past_len`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.wire.errors import InvalidFrame
from shoal.wire.messages import Row, RowOutcome, SequenceStart, TokenLogprob
from shoal_stage.sample.draw import draw, greedy, logprob
from shoal_stage.sample.grammar import Forbidden, GrammarBroken, Grammars, Guide, masks_of
from shoal_stage.sample.penalties import Context

_NEVER = np.float32(-np.inf)


@dataclass(slots=True)
class _Sequence:
    """`coming`: the masks of the row that was prepared last."""

    start: SequenceStart
    context: Context
    guide: Future[Guide] | None = None
    coming: Future[list[Forbidden]] | None = None


class Sampler:
    """The sampling state of one epoch's sequences. Called by the compute thread only."""

    def __init__(self, grammars: Grammars | None = None) -> None:
        self._grammars = grammars
        self._sequences: dict[int, _Sequence] = {}

    @property
    def live(self) -> frozenset[int]:
        """The sequences whose state is kept."""
        return frozenset(self._sequences)

    def release(self, seqs: Iterable[int]) -> None:
        """Forget the sequences; unknown ones are ignored."""
        for seq in seqs:
            self._sequences.pop(seq, None)

    def prepare(self, rows: Sequence[Row]) -> None:
        """Begin the masks of these rows, for `sample` to find when the logits are there."""
        if self._grammars is None:
            return
        for row in rows:
            if row.start is None or row.start.params.grammar:
                sequence = self._sequence(row)
                if sequence.guide is not None:
                    sequence.coming = self._grammars.follow(sequence.guide, row)

    def sample(self, rows: Sequence[Row], logits: NDArray[np.float32]) -> tuple[RowOutcome, ...]:
        """Draw for every row with `sample`; `logits` [S, V] stand in the order of the rows' sampled positions.

        The rows were prepared before.
        """
        outcomes: list[RowOutcome] = []
        at = 0
        for row in rows:
            sequence = self._sequence(row)
            if not row.sample:
                sequence.context.rewind(row.past_len)
                sequence.context.extend(row.tokens)
                continue
            count = len(row.sampled)
            try:
                outcomes.append(self._verify(row, sequence, logits[at : at + count]))
            except GrammarBroken as error:
                outcomes.append(
                    RowOutcome(row.seq, row.version, row.past_len + row.sampled.start + 1, (), (), str(error))
                )
            at += count
        return tuple(outcomes)

    def _sequence(self, row: Row) -> _Sequence:
        known = self._sequences.get(row.seq)
        if row.start is not None and (known is None or known.start is not row.start):
            known = _Sequence(row.start, Context(row.start, row.past_len))
            if row.start.params.grammar and self._grammars is not None:
                known.guide = self._grammars.begin(row.start, row.past_len)
            self._sequences[row.seq] = known
        if known is None:
            raise InvalidFrame(f"sequence {row.seq} was never started: its first row brings no parameters")
        return known

    def _verify(self, row: Row, sequence: _Sequence, logits: NDArray[np.float32]) -> RowOutcome:
        params, context, tokens = sequence.start.params, sequence.context, row.tokens
        first = row.sampled.start
        plain = context.plain and params.logprobs is None
        masks = self._masks(sequence)
        drawn: list[int] = []
        scores: list[TokenLogprob] = []
        context.rewind(row.past_len)
        context.extend(tokens[:first])
        for number, index in enumerate(range(first, len(tokens))):
            context.extend(tokens[index : index + 1])
            adjusted = context.adjust(logits[number])
            if number < len(masks):
                adjusted = np.where(masks[number], _NEVER, adjusted)
            if plain and params.temperature == 0.0:
                token = greedy(adjusted)
            else:
                token = draw(adjusted, params, row.past_len + index + 1)
                if params.logprobs is not None:
                    scores.append(logprob(adjusted, token, params.logprobs))
            drawn.append(token)
            if index + 1 < len(tokens) and index + 1 >= row.known and token != tokens[index + 1]:
                break
        base = row.past_len + first + 1
        if self._grammars is not None and sequence.guide is not None:
            self._grammars.expect(sequence.guide, base + len(drawn) - 1, drawn[-1])
        return RowOutcome(row.seq, row.version, base, tuple(drawn), tuple(scores))

    def _masks(self, sequence: _Sequence) -> list[Forbidden]:
        """Those of the row that was prepared; none without a grammar, or for a stale row.

        Where a draft is forbidden there are none behind it, and none are needed: what is drawn in its place differs.
        """
        if not sequence.start.params.grammar:
            return []
        if sequence.coming is None:
            raise GrammarBroken("this stage has no tokenizer: it cannot follow grammars")
        return masks_of(sequence.coming)
