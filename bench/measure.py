"""Alternating measurement: A B C A B C …, a ratio per round, the median of the ratios with its spread.

A machine that others use drifts by tens of per cent within minutes. Two systems measured one after the other compare
two moments; measured in turn, each round compares its own moment, and the median over rounds drops the odd one. Two
systems that do the same still differ by some per cent by their place in the round; `mirrored` rounds even that out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def over(self, divisor: float) -> Spread:
        """Each figure divided by the same number."""
        return Spread(self.median / divisor, self.low / divisor, self.high / divisor)


@dataclass(frozen=True, slots=True)
class Rounds:
    """One figure per system and round, e.g. tokens per second."""

    figures: Mapping[str, list[float]]

    def spread(self, system: str) -> Spread:
        """The system's own figure: says how quiet the machine was, nothing more."""
        return Spread.of(self.figures[system])

    def ratio(self, system: str, over: str) -> Spread:
        """`system` ÷ `over`, round by round."""
        pairs = zip(self.figures[system], self.figures[over], strict=True)
        return Spread.of([one / other for one, other in pairs])

    def sums(self, *systems: str) -> list[float]:
        """The systems' figures added up, round by round."""
        return [sum(figures) for figures in zip(*(self.figures[system] for system in systems), strict=True)]


def alternate(
    systems: Mapping[str, Callable[[], float]], rounds: int, *, warmup: int = 1, mirrored: bool = False
) -> Rounds:
    """Run every system once a round, in order, after `warmup` rounds that are not counted.

    `mirrored`: every second round goes backwards, so that no system owes its figure to whom it comes after.
    """
    figures: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(warmup + rounds):
        order = list(systems.items())
        for name, measure in reversed(order) if mirrored and number % 2 else order:
            figure = measure()
            if number >= warmup:
                figures[name].append(figure)
    return Rounds(figures)
