"""Each guard of speculation is removed in turn, and random schedules notice: a guard that nothing needs is clutter.

`GUARDS` is the list: the module, the guard as it stands, and what is put in its place. A line that no longer occurs in
its module fails the test too, so that the list cannot fall behind the code.

One guard is not in it: a sequence with rows in flight is not preempted. Random schedules cannot notice that it is
gone: with one strict FIFO a new owner's rows run after the stale ones. Its own test says more.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

SEEDS = (521, 1002, *range(1200))
"""Those first that notice what few schedules do: a run that finds everything is then short."""

GUARDS = {
    "a reply to an old version commits nothing": (
        "batch",
        "self.seq.state is SequenceState.RUNNING and self.version == self.seq.version",
        "self.seq.state is SequenceState.RUNNING",
    ),
    "a reply to a sequence that is over commits nothing": (
        "batch",
        "self.seq.state is SequenceState.RUNNING and self.version == self.seq.version",
        "self.version == self.seq.version",
    ),
    "guesses do not count as known": ("batch", "known=length,", "known=len(tokens),"),
    "a row that runs ahead is not judged by its first id": ("batch", "tokens[max(length, 1) :]", "tokens[length:]"),
    "a row of guesses draws": ("batch", "sample = known >= len(seq.tokens)", "sample = known == len(seq.tokens)"),
    "a wrong guess ends what follows from it": ("scheduler", "            if not hit:", "            if False:"),
    "a guess is right only if it is what was drawn": ("scheduler", "hit = guess.token == token", "hit = True"),
    "a sequence with rows under way is not ready": (
        "scheduler",
        "            if not seq.awaited:",
        "            if True:",
    ),
    "guessed positions are not published": (
        "scheduler",
        "min(sent.end, len(seq.tokens) - 1)",
        "sent.end",
    ),
    "a head of the same step is not preempted": (
        "scheduler",
        "if not other.in_flight and other not in spared",
        "if not other.in_flight",
    ),
    "only a sequence under way runs ahead": ("scheduler", "if seq.awaited and seq.room > 0", "if seq.room > 0"),
    "no row runs ahead without a credit": (
        "scheduler",
        "max(steps, users + 1) > speculator.credits",
        "users >= speculator.credits",
    ),
    "memory goes back when no row is in flight any more": (
        "scheduler",
        "            if not seq.in_flight:\n                self._forget(seq)",
        "            self._forget(seq)",
    ),
    "the drafter hears of the end": ("scheduler", "self._speculator.end(seq)", "pass"),
    "the drafter hears of what was committed": (
        "scheduler",
        "self._speculator.commit(seq, outcome.tokens)",
        "self._speculator.commit(seq, ())",
    ),
    "the drafter hears of a beginning once": ("scheduler", "        if not seq.begun:", "        if True:"),
    "frames of a lost pipeline are not awaited": ("scheduler", "            seq.in_flight = 0\n", ""),
    "a new version after a wrong guess": (
        "sequence",
        "self.version += 1\n        self.awaited = 0",
        "self.awaited = 0",
    ),
    "no row is awaited after a wrong guess": (
        "sequence",
        "self.awaited = 0\n        self.guesses.clear()",
        "self.guesses.clear()",
    ),
    "guesses behind a wrong one are dropped": (
        "sequence",
        "self.awaited = 0\n        self.guesses.clear()",
        "self.awaited = 0",
    ),
    "after a wrong guess the last committed id is fed": (
        "sequence",
        "self.num_computed = len(self.tokens) - 1",
        "self.num_computed = len(self.tokens)",
    ),
    "what was guessed is forgotten with what was computed": (
        "sequence",
        "self.awaited = 0\n        self.guesses.clear()\n        self.introduced",
        "self.awaited = 0\n        self.introduced",
    ),
    "what was awaited is forgotten with what was computed": (
        "sequence",
        "self.published = self.awaited = 0",
        "self.published = 0",
    ),
    "the id at the limit is not fed": (
        "sequence",
        "self.limit - 1 - len(self.tokens)",
        "self.limit - len(self.tokens)",
    ),
    "guesses in flight use up the room": ("sequence", " - len(self.guesses)\n", "\n"),
    "guesses get blocks": ("scheduler", "draft = draft[: self._memory.stretch", "draft[: self._memory.stretch"),
    "no guess ends the answer": ("speculation", "token in seq.stop_token_ids or ", ""),
    "no guess lies beyond the vocabulary": ("speculation", " or not 0 <= token < self._vocab_size", ""),
    "a draft is asked for behind the guesses in flight": (
        "speculation",
        "[guess.token for guess in seq.guesses]",
        "[]",
    ),
    "rows that run ahead keep no head waiting": (
        "scheduler",
        "if len(self._in_flight) - self._steps_ahead <= self._depth:",
        "if len(self._in_flight) <= self._depth:",
    ),
    "guesses keep to the step's budget": ("speculation", "budget=budget)", "budget=10**6)"),
    "probes keep to the step's budget": ("speculation", "budget > sum(taken) and ", ""),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_random_schedules_notice_when_a_guard_is_removed(guard, fuzz, mutated):
    module, old, new = GUARDS[guard]
    with mutated(f"shoal_router.schedule.{module}", old, new) as load:
        product = SimpleNamespace(**{part: load(part) for part in ("scheduler", "speculation", "policy")})
        for seed in SEEDS:
            try:
                fuzz(seed, product)
            except Exception:  # noqa: BLE001 - whatever the guard kept from happening
                return
    pytest.fail(f"{len(SEEDS)} random schedules went well without it")
