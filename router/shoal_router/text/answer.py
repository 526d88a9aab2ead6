"""The text of one sequence as it grows: ids -> detokenizer -> stop strings -> pieces that may be shown.

Pure; the API feeds it the step loop's deltas. It works id by id, so that an answer does not depend on how many ids
a delta happens to bring (speculation brings several), and it keeps each id's logprob beside the text it belongs to:
an id's entry leaves with the piece that contains the beginning of its text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.wire.messages import TokenLogprob
from shoal_router.generation import FinishReason, TokenDelta
from shoal_router.text.detokenize import Detokenizer
from shoal_router.text.stop import StopMatcher


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """An id of the answer with its logprob. `offset`: characters of the answer before its own text."""

    token_id: int
    offset: int
    score: TokenLogprob


@dataclass(frozen=True, slots=True)
class Piece:
    """What became certain: text, the entries that belong to it (when logprobs were asked), and the end if it ended."""

    text: str
    scored: tuple[ScoredToken, ...] = ()
    finish: FinishReason | None = None

    @property
    def empty(self) -> bool:
        """Nothing that a client would see."""
        return not self.text and not self.scored and self.finish is None


class AnswerText:
    """One sequence's answer. After a piece with `finish`, nothing more may be pushed.

    `completion_tokens` counts every id that the model drew up to the end, the stop id included, as OpenAI does.
    """

    __slots__ = (
        "_decoded",
        "_detokenizer",
        "_pending",
        "_released",
        "_stop_ids",
        "_stops",
        "cached_tokens",
        "completion_tokens",
    )

    def __init__(self, detokenizer: Detokenizer, stops: Iterable[str], stop_token_ids: frozenset[int]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._stop_ids = stop_token_ids
        self._pending: deque[ScoredToken] = deque()
        self._decoded = 0
        self._released = 0
        self.completion_tokens = 0
        self.cached_tokens = 0

    def push(self, delta: TokenDelta) -> Piece:
        """The piece that a delta completes; may be empty."""
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        text = ""
        for number, token_id in enumerate(delta.tokens):
            self.completion_tokens += 1
            if token_id in self._stop_ids:
                continue
            if delta.logprobs:
                self._pending.append(ScoredToken(token_id, self._decoded, delta.logprobs[number]))
            new = self._detokenizer.push(token_id)
            self._decoded += len(new)
            text += self._stops.push(new)
            if self._stops.stopped:
                return self._piece(text, FinishReason.STOP)
        if delta.finish is None:
            return self._piece(text, None)
        finish = delta.finish
        if finish is FinishReason.STOP:
            # The model itself ended within a character. When the length limit cut one, it is left out: nobody wants
            # to read U+FFFD where the next token would have made an emoji.
            text += self._stops.push(self._detokenizer.flush())
        return self._piece(text + self._stops.flush(), finish)

    def _piece(self, text: str, finish: FinishReason | None) -> Piece:
        self._released += len(text)
        ended_whole = finish is not None and not self._stops.stopped
        scored = []
        while self._pending and (ended_whole or self._pending[0].offset < self._released):
            scored.append(self._pending.popleft())
        return Piece(text, tuple(scored), finish)
