"""The texts that are drafted for, and what the next step feeds: pure bookkeeping, used by the compute thread only.

A text is what the router said, then the ids that were drafted behind it. Each step feeds what a text has and the
engine has not (a prompt by chunks) and draws one id more. When the router says otherwise, the text is cut, and the
next row simply starts at a smaller `past_len`; drafts that turn out right are kept, and sent again under the new
version if the router did not have them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.wire.drafts import DraftText, Proposal
from shoal.wire.errors import InvalidFrame
from shoal.wire.messages import KvCapacity, Row

Key = tuple[int, int]
"""The router's stream, and the sequence in it."""


@dataclass(slots=True)
class _Text:
    """Invariants: `fed < len(tokens)`; the last `len(drafted)` tokens were drafted here, with these confidences."""

    key: Key
    number: int
    version: int = -1
    tokens: list[int] = field(default_factory=list)
    drafted: list[float] = field(default_factory=list)
    fed: int = 0
    confirmed: int = 0
    ahead: int = 0
    least: float = 0.0
    known: bool = True
    slot: int = -1

    @property
    def said(self) -> int:
        """How much of the text the router said."""
        return len(self.tokens) - len(self.drafted)

    def take(self, said: DraftText, vocab_size: int) -> Proposal | None:
        """Bring the text to how it stands now; gives what of its end the router lacks under the new version."""
        kept = None
        if said.version != self.version:
            if said.base > len(self.tokens):
                raise InvalidFrame(f"sequence {said.seq}: text from {said.base} on, {len(self.tokens)} ids are known")
            kept = self._renew(said)
            self.version = said.version
            self.known = self.known and max(said.tokens, default=0) < vocab_size
        elif said.confirmed > len(self.tokens):
            raise InvalidFrame(f"sequence {said.seq}: {said.confirmed} ids are text, {len(self.tokens)} are known")
        del self.drafted[: max(said.confirmed - self.said, 0)]
        self.confirmed, self.ahead, self.least = said.confirmed, said.ahead, said.least
        return kept

    def _renew(self, said: DraftText) -> Proposal | None:
        end = said.base + len(said.tokens)
        if self.said <= end and tuple(self.tokens[said.base : end]) == said.tokens:
            del self.drafted[: end - self.said]
            if not self.drafted:
                return None
            return Proposal(said.seq, said.version, end, tuple(self.tokens[end:]), tuple(self.drafted))
        same = said.base
        for old, new in zip(self.tokens[said.base :], said.tokens, strict=False):
            if old != new:
                break
            same += 1
        self.tokens[same:] = said.tokens[same - said.base :]
        self.drafted.clear()
        self.fed = max(min(self.fed, same, len(self.tokens) - 1), 0)
        return None

    def wants(self, max_context: int) -> bool:
        """Whether a step for this text is worth it."""
        length = len(self.tokens)
        return (
            self.known
            and 0 < length < min(self.confirmed + self.ahead, max_context)
            and math.prod(self.drafted) >= self.least
        )


class DraftBook:
    """Invariant: a text with a slot owns that slot's KV blocks; texts without one wait for it in order."""

    def __init__(self, capacity: KvCapacity, vocab_size: int, prefill_chunk: int) -> None:
        self._vocab_size = vocab_size
        self._prefill_chunk = prefill_chunk
        per_slot = max(capacity.blocks // capacity.sequences, 1)
        slots = min(capacity.sequences, capacity.blocks)
        self.max_context = min(capacity.max_context, per_slot * capacity.block_size)
        self._blocks = [tuple(range(slot * per_slot, (slot + 1) * per_slot)) for slot in range(slots)]
        self._free = list(range(slots - 1, -1, -1))
        self._texts: dict[Key, _Text] = {}
        self._by_number: dict[int, _Text] = {}
        self._waiting: deque[_Text] = deque()
        self._released: list[int] = []
        self._numbers = 0

    @property
    def live(self) -> frozenset[Key]:
        """The texts that are known."""
        return frozenset(self._texts)

    def update(self, owner: int, said: DraftText) -> Proposal | None:
        """A text stands otherwise; gives what of it the router lacks. Raises InvalidFrame for what cannot follow."""
        key = (owner, said.seq)
        text = self._texts.get(key)
        if text is None:
            text = _Text(key, self._numbers)
            self._numbers += 1
            kept = text.take(said, self._vocab_size)
            self._texts[key] = self._by_number[text.number] = text
            self._waiting.append(text)
            self._admit()
            return kept
        return text.take(said, self._vocab_size)

    def end(self, owner: int, seqs: Iterable[int]) -> None:
        """These sequences are over; unknown ones are ignored."""
        for seq in seqs:
            text = self._texts.pop((owner, seq), None)
            if text is None:
                continue
            del self._by_number[text.number]
            if text.slot < 0:
                self._waiting.remove(text)
            else:
                self._free.append(text.slot)
                self._released.append(text.number)
        self._admit()

    def leave(self, owner: int) -> None:
        """The router is gone, with all its sequences."""
        self.end(owner, [seq for stream, seq in self._texts if stream == owner])

    def releases(self) -> tuple[int, ...]:
        """The engine's sequences that ended since the last call."""
        released = tuple(self._released)
        self._released.clear()
        return released

    def plan(self) -> tuple[Row, ...]:
        """The rows of the next step; none when there is nothing to draft. Short ones first, so that prompts wait."""
        wanting = [text for text in self._texts.values() if text.slot >= 0 and text.wants(self.max_context)]
        wanting.sort(key=lambda text: len(text.tokens) - text.fed)
        rows, budget = [], max(self._prefill_chunk, len(wanting))
        for number, text in enumerate(wanting):
            # One id is kept for each text behind this one.
            count = min(len(text.tokens) - text.fed, budget - (len(wanting) - 1 - number))
            budget -= count
            rows.append(
                Row(
                    seq=text.number,
                    version=0,
                    past_len=text.fed,
                    tokens=tuple(text.tokens[text.fed : text.fed + count]),
                    known=count,
                    sample=text.fed + count == len(text.tokens),
                    blocks=self._blocks[text.slot],
                )
            )
        return tuple(rows)

    def done(self, rows: Sequence[Row], logits: NDArray[np.float32]) -> dict[int, list[Proposal]]:
        """The rows were run; gives what was drafted, for each router. `logits`: one line for each sampled row."""
        # Rows that pad an embedding beyond the tokenizer's ids must not be drawn.
        logits = logits[:, : self._vocab_size]
        best = logits.argmax(axis=1)
        # The softmax of the chosen logit, which is the largest: 1 / sum(exp(l - max)).
        certain = 1.0 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        drafted: dict[int, list[Proposal]] = {}
        at = 0
        for row in rows:
            text = self._by_number[row.seq]
            text.fed = row.past_len + len(row.tokens)
            if not row.sample:
                continue
            token, confidence = int(best[at]), float(certain[at])
            at += 1
            owner, seq = text.key
            proposal = Proposal(seq, text.version, len(text.tokens), (token,), (confidence,))
            text.tokens.append(token)
            text.drafted.append(confidence)
            drafted.setdefault(owner, []).append(proposal)
        return drafted

    def _admit(self) -> None:
        while self._free and self._waiting:
            self._waiting.popleft().slot = self._free.pop()
