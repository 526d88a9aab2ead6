"""How many drafts to send: the stop rule of speculation, as pure arithmetic over chances and measured costs.

One more token in a step is worth its chance to become text; it costs the time by which the step, and whatever waits
for it, gets longer, times the rate at which tokens come now. So a token is added while

    chance > tokens expected from the step x max(cycle slope / cycle, steps x bottleneck slope / period)

where the period of `steps` steps in flight is the cycle, or, in a full ring, `steps` times the slowest stage. Chances
fall along a draft, so taking the likeliest next token over all rows of the step is the optimum (for one row it is the
threshold policy of SpecDec++, for many the goodput rule of TurboSpec, with the cost curve measured).

A sequence that has the ring to itself need not put everything into one row: shorter rows that follow each other come
back sooner, and in stages that would stand idle they are free. `chunk` says how short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
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


def price(costs: StepCosts, tokens: int, steps: int) -> float:
    """What one more token beside `tokens` others costs, as a share of what the ring gives meanwhile."""
    cycle, bottleneck = costs.cycle(tokens), costs.bottleneck(tokens)
    alone = costs.cycle_slope / cycle
    crowded = steps * costs.bottleneck_slope / max(steps * bottleneck, cycle)
    return max(alone, crowded)


def widths(
    chances: Sequence[Sequence[float]], costs: StepCosts, *, steps: int, budget: int, margin: float = MARGIN
) -> list[int]:
    """How many drafts each row of a step gets. `chances[r][j]`: that the first j+1 drafts of row r are all accepted.

    `steps`: decode steps in flight, this one included; `budget`: most drafts in all. Without a margin (1) it is the
    optimum, since what is expected grows ever more slowly and what it costs does not; with one the rate is at least the
    optimum divided by it.
    """
    taken = [0] * len(chances)
    expected, tokens = float(len(chances)), len(chances)
    heap = [(-row[0], number) for number, row in enumerate(chances) if row]
    heapify(heap)
    while heap and budget:
        chance, number = -heap[0][0], heap[0][1]
        if chance <= margin * expected * price(costs, tokens, steps):
            break
        taken[number] += 1
        expected += chance
        tokens += 1
        budget -= 1
        row = chances[number]
        if taken[number] < len(row):
            heapreplace(heap, (-row[taken[number]], number))
        else:
            heappop(heap)
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


def may_run_ahead(chance: float, costs: StepCosts, *, steps: int) -> bool:
    """Whether a row leaves that is of use with this chance. `steps`: all steps in flight, this one included.

    When it is, its tokens come a slowest stage after those before them and not a cycle; when it is not, it may stand in
    the next row's way. In a ring that `steps` do not overfill it costs nothing but power.
    """
    cycle, bottleneck = costs.cycle(1), costs.bottleneck(1)
    gain = chance * (cycle - bottleneck)
    loss = (1.0 - chance) * max(steps * bottleneck - cycle, 0.0)
    return gain > loss + _POWER * costs.compute(1)
