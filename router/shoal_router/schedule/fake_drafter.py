"""A drafter for tests: it knows what the toy model will say, and errs as often as it is told to.

It also keeps the books that every real source keeps, and raises AssertionError when the scheduler breaks the seam's
rules: ids that were not committed in order, a suffix that does not begin where the committed ids end, a life that does
not begin or ends twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random

from shoal_router.schedule.drafting import Draft

Truth = Callable[[int, Sequence[int]], int]
"""The id that sequence `seq` continues these ids with."""


@dataclass(slots=True)
class FakeDrafter:
    """Each id is right with chance `accuracy`; with chance `silence` there is no draft; drafts are `longest` or less.

    `confidence` is what it claims of each id, whatever is true; `seconds` what it says the next one takes.
    """

    truth: Truth
    rng: Random
    accuracy: float = 1.0
    silence: float = 0.0
    longest: int = 32
    varies: bool = True
    confidence: float = 0.8
    source: str = "fake"
    seconds: float = inf
    texts: dict[int, list[int]] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        """See Drafter.begin."""
        assert seq not in self.texts, f"sequence {seq} has begun already"
        self.texts[seq] = list(tokens)
        self.groups[seq] = group

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        assert limit > 0, "a draft of nothing was asked for"
        ids = [*self.texts[seq], *suffix]
        if self.rng.random() < self.silence:
            return None
        start = len(ids)
        for _ in range(self.rng.randint(1, min(limit, self.longest)) if self.varies else min(limit, self.longest)):
            right = self.truth(seq, ids)
            ids.append(right if self.rng.random() < self.accuracy else right + 1)
        drafted = tuple(ids[start:])
        return Draft(drafted, self.source, (self.confidence,) * len(drafted))

    def wait(self, seq: int) -> float:
        """See Drafter.wait."""
        assert seq in self.texts, f"sequence {seq} has not begun"
        return self.seconds

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        for token in tokens:
            assert token == self.truth(seq, self.texts[seq]), f"sequence {seq} was told an id that is not its text"
            self.texts[seq].append(token)

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        del self.texts[seq]
        assert seq not in self.ended, f"sequence {seq} ended twice"
        self.ended.add(seq)
