"""How likely a drafted id is to be accepted: each source's own confidence, corrected by what became of its guesses.

A source's confidence says which of its guesses are better; whether they are as good as it believes shows only in the
outcomes. So what is learned is a factor: accepted guesses over the confidence that was put into them. A source that
gives a constant gets its acceptance rate that way, one that gives a frequency keeps telling its good days from bad.

Learned for each sequence, source and position in the draft: a tail of n-grams that misses says nothing about the draft
model before it, and one user's code says nothing about another one's chat. A new sequence starts from what all
sequences taught, and old outcomes fade.
"""

from __future__ import annotations

_DECAY = 0.96
_DECAY_SHARED = 0.998
_PRIOR = 5.0
_PRIOR_SHARED = 2.0
_POSITIONS = 6
_MOST = 0.99


class Acceptance:
    """Invariant: a cell holds the decayed sums of accepted guesses and of the confidence in all guesses."""

    def __init__(self, shared: Acceptance | None = None) -> None:
        self._shared = shared
        self._decay, self._prior = (_DECAY, _PRIOR) if shared is not None else (_DECAY_SHARED, _PRIOR_SHARED)
        self._cells: dict[tuple[str, int], tuple[float, float]] = {}

    def estimate(self, source: str, position: int, confidence: float) -> float:
        """The chance that a guess is accepted, given that those before it are. `position` counts from 0."""
        return min(confidence * self._factor(source, min(position, _POSITIONS)), _MOST)

    def best(self) -> float:
        """The highest chance that any source seen so far could claim for a first guess; 1 before the first outcome."""
        sources = {source for source, _ in self._cells}
        return max((min(self._factor(source, 0), 1.0) for source in sources), default=1.0)

    def learn(self, source: str, position: int, confidence: float, hit: bool) -> None:
        """A guess that all ids before it had confirmed was accepted or not."""
        key = source, min(position, _POSITIONS)
        hits, trust = self._cells.get(key, (0.0, 0.0))
        self._cells[key] = hits * self._decay + hit, trust * self._decay + confidence
        if self._shared is not None:
            self._shared.learn(source, position, confidence, hit)

    def _factor(self, source: str, position: int) -> float:
        prior = self._shared._factor(source, position) if self._shared is not None else 1.0
        hits, trust = self._cells.get((source, position), (0.0, 0.0))
        return (self._prior * prior + hits) / (self._prior + trust)
