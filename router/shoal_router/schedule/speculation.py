"""Speculation of one scheduler: asks the drafter, lets the policy choose, remembers what became of each guess.

    scheduler ── heads ready ──> holds ──> wait for a draft that is being made
                             ──> widen ──> guesses behind each head          (every step)
              ── ring not full ─> ahead ──> a row of guesses only            (a lone user's pipeline would stand idle)
              <── replies ──────  learn, count_stale, observe

The text does not depend on anything here: a guess is verified by drawing the token itself. Only committed outcomes are
learned from: what was in flight behind a wrong guess, or behind the end of an answer, says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from shoal.resource.serving import SpeculativeMode
from shoal.wire.messages import StageTiming
from shoal_router.schedule.acceptance import Acceptance
from shoal_router.schedule.costs import FADES_SLOWLY, StepCosts
from shoal_router.schedule.drafting import Drafter
from shoal_router.schedule.policy import (
    SpeculationSettings,
    chunk,
    credits,
    may_run_ahead,
    may_wait,
    period,
    price,
    widths,
)
from shoal_router.schedule.sequence import Guess
from shoal_router.schedule.sequence import Sequence as Generation

_FIRST_PROBE = 4
_LONGEST_PROBE = 64
_LEAST = 0.03
"""What is less likely is neither asked for nor sent, even where drafts cost nothing that can be measured."""

_UNSURE = 0.5
"""A guess that looks less likely may be better than it looks: probes are for such ones."""

_PROBES = 0.01
"""The share of the stages' time that probes take at most: where a kernel jumps, one may cost a whole step."""

_SOONER = 0.9
_PATIENCE = 2.0
"""Of the time that the drafts of a row should take: a draft process that is slower than it was is not waited for."""


@dataclass(slots=True)
class SourceStats:
    """Drafted ids of one source: sent to the stages, judged by a committed outcome, and found right.

    Ids behind a wrong one, or behind the end of an answer, were sent but are never judged.
    """

    proposed: int = 0
    verified: int = 0
    accepted: int = 0


@dataclass(slots=True)
class SpeculationStats:
    """Sums since the router started. `stale`: rows that came back for nothing, their guesses already refuted."""

    sources: dict[str, SourceStats] = field(default_factory=dict)
    stale: int = 0


@dataclass(slots=True)
class _Track:
    """What one sequence taught. `silent`: ids committed since a guess was last judged; `patience`: how many it takes
    until one guess may be sent although none pays, to see whether that is still so; `source` made the last one.
    """

    acceptance: Acceptance
    source: str = ""
    silent: int = 0
    patience: int = _FIRST_PROBE


class Speculator:
    """Invariant: it tracks exactly the sequences that have begun and are not over."""

    def __init__(
        self,
        drafter: Drafter,
        settings: SpeculationSettings,
        *,
        vocab_size: int,
        stats: SpeculationStats | None = None,
    ) -> None:
        self.stats = stats or SpeculationStats()
        self._drafter = drafter
        self._settings = settings
        self._vocab_size = vocab_size
        self._shared = Acceptance()
        self._tracks: dict[int, _Track] = {}
        self.start_over(1)

    def start_over(self, depth: int) -> None:
        """A new pipeline, which `depth` steps fill until measured: what steps cost is not known any more."""
        self._costs = StepCosts(depth)
        # Two tokens in each of four rows take longer than eight in one, which attend to one sequence's cache.
        self._costs_of_several = StepCosts(depth, fades=FADES_SLOWLY, like=self._costs)
        self._for_probes = 0.0

    @property
    def credits(self) -> int:
        """Steps that may be in flight before no sequence may run ahead any more."""
        return credits(self._settings, self._costs)

    # ---- a sequence's life

    def begin(self, seq: Generation) -> None:
        """The sequence was admitted for the first time."""
        self._tracks[seq.id] = _Track(Acceptance(self._shared))
        self._drafter.begin(seq.id, seq.tokens, seq.group)

    def commit(self, seq: Generation, tokens: Sequence[int]) -> None:
        """Ids became text."""
        self._tracks[seq.id].silent += len(tokens)
        self._drafter.commit(seq.id, tokens)

    def leave(self, seq: Generation) -> None:
        """The sequence goes on at another pipeline, whose Speculator shares the drafter: it ends here only."""
        self._tracks.pop(seq.id, None)

    def join(self, seq: Generation) -> None:
        """A sequence that has begun elsewhere, with the same drafter, goes on here."""
        self._tracks[seq.id] = _Track(Acceptance(self._shared))

    def end(self, seq: Generation) -> None:
        """The sequence is over; one that never began is ignored."""
        if self._tracks.pop(seq.id, None) is not None:
            self._drafter.end(seq.id)

    # ---- rows go out

    def hold(self, seq: Generation, *, users: int, now: float) -> float | None:
        """Until when the sequence's next row may wait for a draft that is being made; None when it leaves now.

        `users`: sequences that decode. With more of them than the ring takes, nobody waits.
        """
        if users > self.credits or not seq.room:
            return None
        coming = self._drafter.wait(seq.id)
        if coming == inf:
            return None
        if seq.held is None:
            seq.held = now
        most = min(self._settings.max_tokens, seq.room)
        limit = seq.held + _PATIENCE * coming * most
        draft = self._ask(seq, most)
        if now >= limit or len(draft) >= most:
            return None
        if self._settings.mode is SpeculativeMode.FIXED:
            return limit
        track = self._tracks[seq.id]
        rate = track.acceptance.rate(track.source, len(draft))
        likely = [*(guess.estimate for guess in draft), *[rate] * (most - len(draft))]
        if users < self.credits and len(draft) + 1 >= chunk(likely, self._costs, users):
            return None
        return limit if may_wait(list(_chances(draft)), rate, coming, self._costs, users=users) else None

    def widen(self, heads: Sequence[Generation], *, steps: int, budget: int, users: int) -> list[tuple[Guess, ...]]:
        """Guesses for each row of a step.

        `steps`: decode steps in flight with this one; `budget`: most guesses; `users`: sequences that decode.
        """
        if self._settings.mode is SpeculativeMode.FIXED:
            drafts = []
            for seq in heads:
                drafts.append(self._ask(seq, min(self._settings.max_tokens, budget)))
                budget -= len(drafts[-1])
            return drafts
        costs = self._costs_of_several if len(heads) > 1 and self._costs_of_several.measured else self._costs
        if heads and costs.measured and not costs.knows(len(heads)):
            return [()] * len(heads)  # what drafts are dearer than must be known first; no wider step tells it
        least = len(heads) * price(costs, len(heads), steps)
        drafts = [self._ask(seq, self._settings.max_tokens) if self._may_pay(seq, least) else () for seq in heads]
        chances = [
            [chance for chance in _chances(draft[: self._row(draft, users) - 1]) if chance > _LEAST] for draft in drafts
        ]
        taken = widths(chances, costs, steps=steps, budget=budget)
        tokens = len(heads) + sum(taken)
        now = period(costs, tokens, steps)
        self._for_probes += _PROBES * now
        if budget > sum(taken) and self._for_probes >= period(costs, tokens + 1, steps) - now:
            for number, seq in enumerate(heads):
                # Only to learn: a likely guess that was not taken is too dear as it is.
                unsure = drafts[number] and drafts[number][0].estimate < _UNSURE
                if not taken[number] and unsure and self._probe_is_due(seq):
                    taken[number] = 1
                    self._for_probes = 0.0
                    break
        return [draft[:count] for draft, count in zip(drafts, taken, strict=True)]

    def ahead(
        self, candidates: Sequence[Generation], *, steps: int, budget: int, users: int, now: float
    ) -> tuple[Generation, tuple[Guess, ...]] | None:
        """The sequence that runs ahead of its own verification, with its guesses; None when it pays for none.

        The likeliest to be right so far goes first. `steps`: all steps in flight with this one; `budget`: most guesses;
        `users`: sequences that decode.
        """
        for seq in sorted(candidates, key=lambda seq: (-seq.survival, seq.awaited, seq.id)):
            draft = self._ask(seq, min(self._settings.max_tokens, budget))
            if draft and self._settings.mode is not SpeculativeMode.FIXED:
                due = seq.due - now
                chances = _chances(draft[: self._row(draft, users)], seq.survival)
                draft = draft[: sum(may_run_ahead(chance, self._costs, steps=steps, due=due) for chance in chances)]
            if draft:
                return seq, draft
        return None

    def due(self, sent: float, tokens: int) -> float:
        """When a step of `tokens` tokens that leaves at `sent` is likely back."""
        return sent + self._costs.cycle(tokens)

    def room_at(self, sent: float, tokens: int) -> float:
        """When the ring has room for a row ahead, after a step of `tokens` tokens that left at `sent`.

        Sooner it would only stand in the slowest stage's queue, while more could be drafted.
        """
        if self._settings.mode is SpeculativeMode.FIXED or not self._costs.measured:
            return sent
        return sent + _SOONER * self._costs.bottleneck(tokens)

    def count_sent(self, guesses: Iterable[Guess]) -> None:
        """The guesses went to the stages."""
        for guess in guesses:
            self._source(guess.source).proposed += 1

    # ---- results come back

    def learn(self, seq: Generation, guess: Guess, hit: bool) -> None:
        """A guess met the id that was committed in its place."""
        source, track = self._source(guess.source), self._tracks[seq.id]
        source.verified += 1
        source.accepted += hit
        track.acceptance.learn(guess.source, guess.position, guess.confidence, hit)
        track.source = guess.source
        track.silent = 0
        track.patience = 0 if hit else min(max(2 * track.patience, _FIRST_PROBE), _LONGEST_PROBE)

    def count_stale(self) -> None:
        """A row came back whose sequence had gone another way, or was over."""
        self.stats.stale += 1

    def observe(self, tokens: int, rows: int, timings: Sequence[StageTiming], latency: float) -> None:
        """A step came back `latency` seconds after it had left."""
        self._costs.observe(tokens, timings, latency)
        if rows > 1:
            self._costs_of_several.observe(tokens, timings, latency)

    # ---- inside

    def _ask(self, seq: Generation, limit: int) -> tuple[Guess, ...]:
        """The drafter's guesses behind what is in flight, cut where the answer would end."""
        limit = min(limit, seq.room)
        if limit < 1:
            return ()
        draft = self._drafter.propose(seq.id, [guess.token for guess in seq.guesses], limit)
        if draft is None:
            return ()
        acceptance = self._tracks[seq.id].acceptance
        guesses = []
        for position, (token, confidence) in enumerate(zip(draft.tokens[:limit], draft.confidence, strict=False)):
            # An id that ends the answer is drawn all the same; nothing is ever read behind it. One beyond the
            # vocabulary (a draft model's may be padded) would be refused by the stages.
            if token in seq.stop_token_ids or not 0 <= token < self._vocab_size:
                break
            estimate = acceptance.estimate(draft.source, position, confidence)
            guesses.append(Guess(token, draft.source, position, confidence, estimate))
        return tuple(guesses)

    def _row(self, draft: Sequence[Guess], users: int) -> int:
        """Most tokens of a row that begins with this draft: all there are when the next one must wait for it anyway."""
        if not draft or users >= self.credits:
            return len(draft) + 1
        return chunk([guess.estimate for guess in draft], self._costs, users)

    def _may_pay(self, seq: Generation, least: float) -> bool:
        """Whether to ask at all: not when the surest guess would be too dear, unless it is time to probe."""
        return self._tracks[seq.id].acceptance.best() > max(least, _LEAST) or self._probe_is_due(seq)

    def _probe_is_due(self, seq: Generation) -> bool:
        track = self._tracks[seq.id]
        return track.silent >= track.patience

    def _source(self, name: str) -> SourceStats:
        return self.stats.sources.setdefault(name, SourceStats())


def _chances(guesses: Iterable[Guess], chance: float = 1.0) -> Iterable[float]:
    """For each guess the chance that it and all before it are accepted."""
    for guess in guesses:
        chance *= guess.estimate
        yield chance
