"""The text of one sequence as it grows: ids -> detokenizer -> stop strings -> parts -> pieces that may be shown.

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
from shoal_router.text.calls import CallDelta
from shoal_router.text.detokenize import Detokenizer
from shoal_router.text.parts import Parts, PartsReader
from shoal_router.text.stop import StopMatcher


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """An id of the answer with its logprob. `offset`: characters of the answer before its own text."""

    token_id: int
    offset: int
    score: TokenLogprob


@dataclass(frozen=True, slots=True)
class Piece:
    """What became certain: text, the entries that belong to it (when logprobs were asked), and the end if it ended.

    Of a chat answer also reasoning and tool calls; `called`: at its end it has at least one whole call. The entries are
    of all ids, whatever part they were of.
    """

    text: str
    scored: tuple[ScoredToken, ...] = ()
    finish: FinishReason | None = None
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    called: bool = False

    @property
    def empty(self) -> bool:
        """Nothing that a client would see."""
        return not (self.text or self.scored or self.reasoning or self.calls) and self.finish is None


class AnswerText:
    """One sequence's answer. After a piece with `finish`, nothing more may be pushed.

    `completion_tokens` counts every id that the model drew up to the end, the stop id included, as OpenAI does;
    `reasoning_tokens` are those of them that were reasoning.
    """

    __slots__ = (
        "_decoded",
        "_detokenizer",
        "_pending",
        "_reader",
        "_released",
        "_stop_ids",
        "_stops",
        "cached_tokens",
        "completion_tokens",
        "reasoning_tokens",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Iterable[str],
        stop_token_ids: frozenset[int],
        reader: PartsReader | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._stop_ids = stop_token_ids
        self._reader = reader
        self._pending: deque[ScoredToken] = deque()
        self._decoded = 0
        self._released = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0

    def push(self, delta: TokenDelta) -> Piece:
        """The piece that a delta completes; may be empty."""
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        text, parts = "", []
        for number, token_id in enumerate(delta.tokens):
            self.completion_tokens += 1
            if token_id in self._stop_ids:
                continue
            if delta.logprobs:
                self._pending.append(ScoredToken(token_id, self._decoded, delta.logprobs[number]))
            new = self._detokenizer.push(token_id)
            self._decoded += len(new)
            new = self._stops.push(new)
            text += new
            if self._reader is not None:
                self.reasoning_tokens += self._reader.reasons
                parts.append(self._reader.push(new))
            if self._stops.stopped or (self._reader is not None and self._reader.done):
                return self._piece(text, parts, FinishReason.STOP)
        if delta.finish is None:
            return self._piece(text, parts, None)
        finish = delta.finish
        rest = ""
        if finish is FinishReason.STOP:
            # The model itself ended within a character. When the length limit cut one, it is left out: nobody wants
            # to read U+FFFD where the next token would have made an emoji.
            rest = self._stops.push(self._detokenizer.flush())
        rest += self._stops.flush()
        if self._reader is not None:
            parts.append(self._reader.push(rest))
        return self._piece(text + rest, parts, finish)

    def _piece(self, text: str, parts: list[Parts], finish: FinishReason | None) -> Piece:
        self._released += len(text)
        ended_whole = finish is not None and not self._stops.stopped
        scored = []
        while self._pending and (ended_whole or self._pending[0].offset < self._released):
            scored.append(self._pending.popleft())
        if self._reader is None:
            return Piece(text, tuple(scored), finish)
        if finish is not None:
            parts.append(self._reader.flush())
        return Piece(
            "".join(part.content for part in parts),
            tuple(scored),
            finish,
            "".join(part.reasoning for part in parts),
            tuple(call for part in parts for call in part.calls),
            finish is not None and self._reader.called,
        )
