"""Penalties and logit bias: what makes a sequence's next token depend on its earlier ones.

Repetition (Keskar 2019) looks at prompt and answer; presence and frequency (OpenAI) at the answer only. Applied in
that order, the logit bias last. Every row of a drafted chunk is judged along its own drafted path, and a rejected
draft is taken back by the next row's `past_len`: the state is just the ids by position, with their counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.wire.errors import InvalidFrame
from shoal.wire.messages import SequenceStart


class Context:
    """Invariant: `_all` counts every id of `_tokens`, `_generated` those at positions from `prompt_len` on."""

    def __init__(self, start: SequenceStart, past_len: int) -> None:
        params = start.params
        self._params = params
        self._prompt_len = start.prompt_len
        self._bias_ids = np.array([token for token, _ in params.logit_bias], np.intp)
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._counts = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        self.plain = not self._counts and not params.logit_bias
        self._tokens: list[int] = []
        self._all: dict[int, int] = {}
        self._generated: dict[int, int] = {}
        if self._counts:
            if len(start.history) != past_len:
                raise InvalidFrame(
                    f"penalties need all {past_len} ids before the sequence's first row, {len(start.history)} came"
                )
            self.extend(start.history)

    def rewind(self, past_len: int) -> None:
        """Forget the ids at positions from `past_len` on."""
        while len(self._tokens) > past_len:
            token = self._tokens.pop()
            _decrement(self._all, token)
            if len(self._tokens) >= self._prompt_len:
                _decrement(self._generated, token)

    def extend(self, tokens: Sequence[int]) -> None:
        """Note ids that were fed at the next positions."""
        if not self._counts:
            return
        for token in tokens:
            self._all[token] = self._all.get(token, 0) + 1
            if len(self._tokens) >= self._prompt_len:
                self._generated[token] = self._generated.get(token, 0) + 1
            self._tokens.append(token)

    def adjust(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits after penalties and bias: a copy, unless nothing changes."""
        if self.plain:
            return logits
        logits = logits.copy()
        params = self._params
        if params.repetition_penalty != 1.0 and self._all:
            seen = np.fromiter(self._all, np.intp, len(self._all))
            values = logits[seen]
            penalty = np.float32(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._generated:
            seen = np.fromiter(self._generated, np.intp, len(self._generated))
            counts = np.fromiter(self._generated.values(), np.float32, len(self._generated))
            logits[seen] -= np.float32(params.frequency_penalty) * counts + np.float32(params.presence_penalty)
        if self._bias_ids.size:
            np.add.at(logits, self._bias_ids, self._bias)
        return logits


def _decrement(counts: dict[int, int], token: int) -> None:
    if counts[token] == 1:
        del counts[token]
    else:
        counts[token] -= 1
