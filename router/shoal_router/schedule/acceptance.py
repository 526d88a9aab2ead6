"""How likely a drafted id is to be accepted: each source's own confidence, corrected by what became of its guesses.

A source's confidence says which of its guesses are better; whether they are as good as it believes shows only in the
outcomes. A draft model that gives its best id a chance of a half is right far more often than that, since the target
too takes its best; n-grams may be right far less often. So what is learned is an exponent: a guess of confidence `c` is
accepted with chance `c ** exponent`, such that what was expected of past guesses is what came true. A source that gives
a constant gets its acceptance rate that way, and one that gives a frequency keeps telling its good guesses from bad
without any of them becoming certain.

Learned for each sequence, source and position in the draft: a tail of n-grams that misses says nothing about the draft
model before it, and one user's code says nothing about another one's chat. A new sequence starts from what all
sequences taught, a position that nobody has seen from the one before it, and old outcomes fade.
"""

from __future__ import annotations

from math import exp, log

_DECAY = 0.96
_DECAY_SHARED = 0.998
_PRIOR = 7.0
_PRIOR_SHARED = 3.0
_PRIOR_CONFIDENCE = 0.7
"""The prior counts as this many guesses of this confidence."""

_POSITIONS = 6
_LEAST, _MOST = 0.01, 0.98
_SURE = 0.99
_LEVELS = 10
_STEPS = 24
_FORGOTTEN = 0.02


class _Outcomes:
    """Decayed sums over guesses of one source and position: how many at each level of confidence, how many right.

    Invariant: `exponent` is what `Acceptance` last fitted, or None since then something was learned.
    """

    def __init__(self) -> None:
        self.weights = [0.0] * _LEVELS
        self.logs = [0.0] * _LEVELS
        self.hits = 0.0
        self.exponent: float | None = None

    def add(self, confidence: float, hit: bool, decay: float) -> None:
        """One more guess."""
        for level in range(_LEVELS):
            self.weights[level] *= decay
            self.logs[level] *= decay
        level = min(int(confidence * _LEVELS), _LEVELS - 1)
        self.weights[level] += 1.0
        self.logs[level] += log(confidence)
        self.hits = self.hits * decay + hit
        self.exponent = None

    def surest(self) -> float:
        """The highest confidence of late."""
        seen = [level for level, weight in enumerate(self.weights) if weight > _FORGOTTEN]
        return exp(self.logs[seen[-1]] / self.weights[seen[-1]]) if seen else _MOST

    def fit(self, prior: float, prior_exponent: float) -> float:
        """The exponent for which as many guesses were to be expected right as were, the prior's included."""
        doubt = log(_PRIOR_CONFIDENCE)
        points = [(weight, total / weight) for weight, total in zip(self.weights, self.logs, strict=True) if weight]
        points.append((prior, doubt))
        hits = self.hits + prior * exp(prior_exponent * doubt)
        low, high = log(0.01), log(1000.0)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            exponent = exp(middle)
            if sum(weight * exp(exponent * logarithm) for weight, logarithm in points) > hits:
                low = middle
            else:
                high = middle
        return exp((low + high) / 2)


class Acceptance:
    """`shared` is what a new sequence starts from, and is taught as well; None: this is the shared one."""

    def __init__(self, shared: Acceptance | None = None) -> None:
        self._shared = shared
        self._decay, self._prior = (_DECAY, _PRIOR) if shared is not None else (_DECAY_SHARED, _PRIOR_SHARED)
        self._cells: dict[tuple[str, int], _Outcomes] = {}

    def estimate(self, source: str, position: int, confidence: float) -> float:
        """The chance that a guess is accepted, given that those before it are. `position` counts from 0."""
        return min(_chance(confidence, self.exponent(source, position)), _SURE)

    def best(self) -> float:
        """The chance of the surest first guess that any source has lately made; 1 before the first outcome."""
        sources = [source for source, position in self._cells if position == 0]
        return max((self.estimate(source, 0, self._cells[source, 0].surest()) for source in sources), default=1.0)

    def rate(self, source: str, position: int) -> float:
        """The share of this source's guesses at this position that are right, whatever it says of them."""
        cell = self._cells.get((source, min(position, _POSITIONS)))
        if cell is None:
            return _chance(_PRIOR_CONFIDENCE, self.exponent(source, position))
        expected = self._prior * _chance(_PRIOR_CONFIDENCE, self.exponent(source, position))
        return (expected + cell.hits) / (self._prior + sum(cell.weights))

    def learn(self, source: str, position: int, confidence: float, hit: bool) -> None:
        """A guess that all ids before it had confirmed was accepted or not."""
        key = source, min(position, _POSITIONS)
        self._cells.setdefault(key, _Outcomes()).add(_bounded(confidence), hit, self._decay)
        if self._shared is not None:
            self._shared.learn(source, position, confidence, hit)

    def exponent(self, source: str, position: int) -> float:
        """What a confidence of this source at this position is to be raised to; 1 means that it can be believed."""
        position = min(position, _POSITIONS)
        if self._shared is not None:
            prior = self._shared.exponent(source, position)
        else:
            prior = self.exponent(source, position - 1) if position else 1.0
        cell = self._cells.get((source, position))
        if cell is None:
            return prior
        if cell.exponent is None:
            cell.exponent = cell.fit(self._prior, prior)
        return cell.exponent


def _chance(confidence: float, exponent: float) -> float:
    return exp(exponent * log(_bounded(confidence)))


def _bounded(confidence: float) -> float:
    """A certain guess could never be corrected, and an impossible one never be right."""
    return min(max(confidence, _LEAST), _MOST)
