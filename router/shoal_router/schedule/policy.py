"""How many drafts to send, and when: pure arithmetic over chances and measured costs.

A step with `n` tokens is worth the ids that it is expected to give, over its *period*: its cycle, or in a full ring
`steps` times the slowest stage. The likeliest drafts over all rows of the step go first, and as many of them as make
that rate the highest (`widths`). For one row it is the threshold policy of SpecDec++, for many the goodput rule of
TurboSpec, with the cost curve measured, and with its jumps: what one more token costs does not grow evenly.

A sequence that has the ring to itself need not put everything into one row: shorter rows that follow each other come
back sooner, and in stages that would stand idle they are free. `chunk` says how short, `may_run_ahead` whether at all.
Where drafts take time to make, a row may better wait for the next one than leave without it: `may_wait`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from shoal.resource.serving import SpeculativeMode
from shoal_router.schedule.costs import StepCosts

MOST_IN_FLIGHT = 24
"""Steps of one ring, however long its way: a stage takes no more than 32 frames unasked."""

MARGIN = 1.2
"""A draft must pay this much more than it costs: chances are estimates, and what looks likeliest is overestimated."""

_POWER = 0.05
"""Of the time that a row ahead keeps the stages busy it must save at least this share: they are other people's PCs."""


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Auto: as many drafts as pay. Fixed: always `max_tokens`, in every step that may leave. Off: none.

    `max_tokens`: most drafts of one row. `max_chunks`: most steps in flight because of speculation; 0: as many as
    fill the ring, by measured times; 1: a sequence's next chunk waits for the one before it.
    """

    mode: SpeculativeMode = SpeculativeMode.OFF
    max_tokens: int = 8
    max_chunks: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or not 0 <= self.max_chunks <= MOST_IN_FLIGHT:
            raise ValueError(f"max_tokens {self.max_tokens} or max_chunks {self.max_chunks} is out of range")


def credits(settings: SpeculationSettings, costs: StepCosts) -> int:
    """Steps that may be in flight before a sequence may not run ahead of its own verification any more."""
    return settings.max_chunks or min(costs.depth, MOST_IN_FLIGHT)


def period(costs: StepCosts, tokens: int, steps: float) -> float:
    """Seconds in which the ring gives the results of one step of `tokens` tokens, with `steps` like it in flight."""
    return max(costs.cycle(tokens), steps * costs.bottleneck(tokens))


def price(costs: StepCosts, tokens: int, steps: int, most: int = 8) -> float:
    """What a token beside `tokens` others costs at least, as a share of what the ring gives meanwhile.

    The least over up to `most` tokens more: the first one alone may cost a jump that is worth it for several.
    """
    now = period(costs, tokens, steps)
    return min((period(costs, tokens + more, steps) / now - 1.0) / more for more in range(1, most + 1))


def widths(
    chances: Sequence[Sequence[float]], costs: StepCosts, *, steps: int, budget: int, margin: float = MARGIN
) -> list[int]:
    """How many drafts each row of a step gets. `chances[r][j]`: that the first j+1 drafts of row r are all accepted.

    `steps`: decode steps in flight, this one included; `budget`: most drafts in all. Without a margin (1) it is the
    optimum for any cost curve: chances fall along a row, so the best `n` drafts are the `n` likeliest, and every `n` is
    tried. With one the rate is at least the optimum divided by it.
    """
    likeliest = sorted(
        ((chance, number) for number, row in enumerate(chances) for chance in row),
        key=lambda pair: -pair[0],
    )[:budget]
    rows = len(chances)
    expected = worth = float(rows)
    best, seconds = 0, period(costs, rows, steps)
    for count, (chance, _) in enumerate(likeliest, 1):
        expected += chance
        longer = period(costs, rows + count, steps)
        if expected - worth > margin * worth * (longer / seconds - 1.0):
            best, worth, seconds = count, expected, longer
    taken = [0] * rows
    for _, number in likeliest[:best]:
        taken[number] += 1
    return taken


def chunk(estimates: Sequence[float], costs: StepCosts, users: int) -> int:
    """How many tokens a row has at best when the next row need not wait for it: a sequence that runs ahead.

    `estimates`: each guess's own chance; guesses further on are taken to be as likely as these are on average. Rows of
    `m` tokens, each right throughout with chance `a`, follow each other at a slowest stage's time for each of `users`
    sequences, until one is wrong. From one wrong guess to the next, however long the rows, come equally many tokens,
    in a cycle and `a / (1 - a)` further rows; the best length makes that time the shortest.
    """
    average = prod(estimates) ** (1 / len(estimates))
    best, shortest = 1, inf
    chance = 1.0
    for rows in range(1, len(estimates) + 2):
        chance *= estimates[rows - 1] if rows <= len(estimates) else average
        seconds = costs.cycle(rows) + users * costs.bottleneck(rows) * chance / (1.0 - chance)
        if seconds < shortest:
            best, shortest = rows, seconds
    return best


def may_run_ahead(chance: float, costs: StepCosts, *, steps: int, due: float) -> bool:
    """Whether a row leaves that is of use with this chance.

    `steps`: all steps in flight, this one included; `due`: seconds until the row before it is back. When it is right,
    its tokens come that much sooner, but no sooner than the slowest stage lets them. When it is wrong, the next row may
    find it in its way: because it left late, or because `steps` overfill the ring. Else it costs nothing but power.
    """
    cycle, bottleneck = costs.cycle(1), costs.bottleneck(1)
    gain = chance * min(due, cycle - bottleneck)
    loss = (1.0 - chance) * max(steps * bottleneck - cycle, bottleneck - due, 0.0)
    return gain > loss + _POWER * costs.compute(1)


def may_wait(chances: Sequence[float], rate: float, seconds: float, costs: StepCosts, *, users: int) -> bool:
    """Whether a row that could leave waits for one more draft, which takes `seconds` to come.

    `chances`: that the first j+1 drafts that are there are all accepted; `rate`: the share of such drafts that are
    right. What the row is expected to give then, over its period and the wait, must be more than it is now.
    """
    tokens = 1 + len(chances)
    steps = min(users, costs.depth)
    now = period(costs, tokens, steps) / steps
    later = period(costs, tokens + 1, steps) / steps + seconds
    expected = 1.0 + sum(chances)
    chance = (chances[-1] if chances else 1.0) * rate / MARGIN
    return (expected + chance) * now > expected * later
