"""N-gram drafts: go on as the sequence went on after the last occurrence of its last few ids (prompt lookup).

The cheapest source: one table, no comparison, no sharing. It speaks sooner than the suffix source (after two ids) and
never says much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from shoal_router.schedule.drafting import Draft

_LONGEST, _SHORTEST = 4, 2
_LENGTH = 4
_CONFIDENCE = {2: 0.3, 3: 0.45, 4: 0.6}
"""Priors by the number of ids that matched; what is learned corrects them."""


class _Text:
    """Invariant: `follows` maps the hash of each n-gram to the last position behind it that holds an id."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.follows: dict[int, int] = {}

    def extend(self, ids: Sequence[int]) -> None:
        first = len(self.tokens)
        self.tokens += ids
        for size in range(_SHORTEST, _LONGEST + 1):
            for at in range(max(first, size), len(self.tokens)):
                self.follows[hash(tuple(self.tokens[at - size : at]))] = at


class NgramDrafter:
    """See Drafter."""

    name = "ngram"

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:  # noqa: ARG002 - nothing is shared
        """See Drafter.begin."""
        text = self._texts[seq] = _Text()
        text.extend(tokens)

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        text = self._texts[seq]
        tail = [*text.tokens[-_LONGEST:], *suffix][-_LONGEST:]
        for size in range(min(_LONGEST, len(tail)), _SHORTEST - 1, -1):
            gram = tail[-size:]
            at = text.follows.get(hash(tuple(gram)))
            if at is not None and text.tokens[at - size : at] == gram:
                ids = tuple(text.tokens[at : at + min(limit, _LENGTH)])
                return Draft(ids, self.name, (_CONFIDENCE[size],) * len(ids))
        return None

    def wait(self, seq: int) -> float:  # noqa: ARG002 - what there is, is there at once
        """See Drafter.wait."""
        return inf

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        self._texts[seq].extend(tokens)

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        self._texts.pop(seq, None)
