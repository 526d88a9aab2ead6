"""What the router knows of the drafts of one sequence: pure, one side of the talk with the draft process.

    text      committed ids, then ids of another source that were sent and not committed
    drafts    what the draft process has sent behind them, with its confidence

A commit that agrees with what was drafted moves the border; one that does not starts a new version. What is on its way
meanwhile belongs to the old one and is dropped when it comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import prod

from shoal.wire.drafts import DraftText, Proposal


class Ahead:
    """Invariants: `committed <= len(text)`; `drafts` stand behind `text`, without a gap, and are of `version`."""

    def __init__(self, seq: int, tokens: Sequence[int]) -> None:
        self.seq = seq
        self.text = list(tokens)
        self.committed = len(self.text)
        self.drafts: deque[tuple[int, float]] = deque()
        self._version = 0
        self._base = 0
        self._told: tuple[int, int] | None = None

    def commit(self, tokens: Sequence[int]) -> list[tuple[float, bool]]:
        """These ids became text. Returns for each that had been drafted the confidence, and whether it was right."""
        outcomes = []
        for token in tokens:
            at = self.committed
            if at == len(self.text) and self.drafts:
                drafted, confidence = self.drafts[0]
                outcomes.append((confidence, drafted == token))
            if at < len(self.text) and self.text[at] == token:
                pass
            elif at == len(self.text) and self.drafts and self.drafts[0][0] == token:
                self.text.append(token)
                self.drafts.popleft()
            else:
                self._rewrite(at, [token])
            self.committed += 1
        return outcomes

    def propose(self, suffix: Sequence[int], limit: int) -> tuple[list[int], list[float]]:
        """What is there behind the suffix by now. A suffix that is not what was drafted is told, and waits."""
        others = len(self.text) - self.committed
        taken = len(suffix) - others
        if list(suffix[:others]) != self.text[self.committed :] or list(suffix[others:]) != [
            token for token, _ in islice(self.drafts, taken)
        ]:
            self._rewrite(self.committed, suffix)
            return [], []
        found = list(islice(self.drafts, taken, taken + limit))
        return [token for token, _ in found], [confidence for _, confidence in found]

    @property
    def survival(self) -> float:
        """The draft process's own confidence that all of its drafts here are right."""
        return prod(confidence for _, confidence in self.drafts)

    def receive(self, proposal: Proposal) -> None:
        """Drafts came. What was drafted for an older version, or is there already, is dropped."""
        if proposal.version != self._version:
            return
        known = len(self.text) + len(self.drafts) - proposal.base
        if 0 <= known < len(proposal.tokens):
            self.drafts.extend(zip(proposal.tokens[known:], proposal.confidence[known:], strict=True))

    def message(self, ahead: int, least: float) -> DraftText | None:
        """What the draft process must be told; None when it knows all. Counts as told from then on."""
        stands = self._version, self.committed
        if stands == self._told:
            return None
        news = self._told is None or self._told[0] != self._version
        base = self._base if news else 0
        tokens = tuple(self.text[base:]) if news else ()
        self._told, self._base = stands, len(self.text)
        return DraftText(self.seq, self._version, base, tokens, self.committed, ahead, least)

    def forget(self) -> None:
        """The draft process knows nothing any more: tell it all, as a new version."""
        self.drafts.clear()
        self._version += 1
        self._base = 0
        self._told = None

    def restart(self, tokens: Sequence[int]) -> None:
        """The committed ids are these, whatever they were."""
        self._rewrite(0, tokens)
        self.committed = len(tokens)

    def _rewrite(self, at: int, tokens: Sequence[int]) -> None:
        """From position `at` on the text is `tokens`, whatever was drafted."""
        same = 0
        for old, new in zip(self.text[at:], tokens, strict=False):
            if old != new:
                break
            same += 1
        self.text[at:] = tokens
        self.drafts.clear()
        self._version += 1
        self._base = min(self._base, at + same)
