"""What a step costs, measured: the stages' compute by tokens in the step, and what the way round the ring takes.

Two sums decide about speculation. The *cycle* is how long a step is under way: all stages one after the other and the
network between them. The *bottleneck* is the slowest stage: no two steps can follow each other faster. Both are kept by
the number of tokens, not as a line: a CPU's matrix products have kernels for a few rows that cost next to nothing
beside one row, and at the next row a jump to others (with INT8 weights on AVX2, 5 tokens take nearly twice as long as
4). What was not seen yet lies between its neighbours, or is assumed to grow as a small decoder's does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.wire.messages import StageTiming, outside_stages

_SLOPE = 0.08  # of a step with one token: what one more costs until measured
_LARGEST = 64  # tokens; beyond that a step is a prompt's, whose costs are others
_FASTER, _SLOWER = 0.3, 0.05
_FEW = 4
"""Of the first few steps of a width the fastest counts: one that met other work on its PC must not scare it off."""

_SURE = 3
"""So often a width must have been measured to be relied on."""

FADES, FADES_SLOWLY = 0.98, 0.999
"""With each step of another width, what one or two steps of a width cost beyond what others suggest counts less, so
that it is tried again. Soon where a lone user pays for that, who has most to gain. Where many share the step, all of
them wait for it, and there is one such width after the other: eight users lost a tenth of their speed."""

_TOGETHER = 0.5
_NETWORK_WEIGHT = 0.1


@dataclass(slots=True)
class _Width:
    """What steps of one width took. `trust`: how far that is believed where its neighbours suggest less."""

    seconds: float
    steps: int = 1
    trust: float = 0.5

    def measure(self, seconds: float) -> float:
        """One more step; gives by how much the PC got slower, as a factor: 1 as long as the width is hardly known."""
        before = self.seconds
        new = self.steps < _FEW
        self.seconds += ((1.0 if new else _FASTER) if seconds < before else _SLOWER) * (seconds - before)
        self.steps += 1
        self.trust = 1.0 - 0.5**self.steps
        return 1.0 if new else self.seconds / max(before, 1e-9)

    def fade(self, factor: float) -> None:
        """A step of another width was measured. What was seen again and again is not forgotten."""
        self.trust = max(factor * self.trust, 1.0 - 0.5 ** (self.steps - 1))


class _Curve:
    """Seconds by tokens. Near the lower edge of what was measured: what else ran on that PC in that moment, such as
    the draft model, is no cost of the tokens; so a faster step counts for more than a slower one. A width that seems
    dear is not used, and what is not used is not measured: so that a bad moment does not decide for ever, its first
    measurements fade towards what the next lower width suggests, until it is tried again. `assumed`: how seconds grow
    with tokens where nothing was measured; only its ratios count.

    Invariant: `_widths` are the measured ones in order, `_least` what each is believed to cost: never less than a
    smaller one, unless measured often enough to know better (3 tokens do take longer than 4 on AVX2). Every step asks
    for dozens of widths, so they are looked up, not searched.
    """

    def __init__(self, fades: float, assumed: Callable[[float], float]) -> None:
        self._fades = fades
        self._assumed = assumed
        self._measured: dict[int, _Width] = {}
        self._widths: list[int] = []
        self._least: list[float] = []

    def add(self, tokens: int, seconds: float) -> None:
        """A step took this long. When a PC gets slower or faster, it does so at every width."""
        known = self._measured.get(tokens)
        if known is None:
            self._measured[tokens] = _Width(seconds)
        else:
            slower = 1.0 + _TOGETHER * (known.measure(seconds) - 1.0)
            for width, other in self._measured.items():
                if width != tokens:
                    other.seconds *= slower
                    other.fade(self._fades)
        self._widths = sorted(self._measured)
        self._least = []
        for width in self._widths:
            measured = self._measured[width]
            believed = measured.seconds
            if self._least:
                below = self._widths[len(self._least) - 1]
                suggested = self._least[-1] * self._assumed(width) / self._assumed(below)
                if believed > suggested:
                    believed = suggested + measured.trust * (believed - suggested)
                if measured.steps < _SURE:
                    believed = max(believed, self._least[-1])
            self._least.append(believed)

    def has(self, tokens: int) -> bool:
        """Whether this very width was measured."""
        return tokens in self._measured

    def at(self, tokens: float) -> float:
        """Seconds of a step, growing with its tokens; of one token 1 until anything was measured."""
        if not self._widths:
            return self._assumed(tokens)
        above = bisect_right(self._widths, tokens)
        if above == 0:
            return self._least[0] * self._assumed(tokens) / self._assumed(self._widths[0])
        width, least = self._widths[above - 1], self._least[above - 1]
        if above == len(self._widths):
            return least * self._assumed(tokens) / self._assumed(width)
        return least + (self._least[above] - least) * (tokens - width) / (self._widths[above] - width)


def _assumed(tokens: float) -> float:
    """How a step's time grows with its tokens as long as nobody knows."""
    return 1.0 + _SLOPE * (tokens - 1)


class StepCosts:
    """Seconds of a step on one pipeline. Until a step was measured, `stages` equal stages without a network.

    `like`: other steps' costs, as which these grow with their tokens where they were not measured themselves.
    """

    def __init__(self, stages: int, *, fades: float = FADES, like: StepCosts | None = None) -> None:
        self._stages = stages
        self._all: _Curve = _Curve(fades, like._all.at if like is not None else _assumed)
        self._slowest: _Curve = _Curve(fades, like._slowest.at if like is not None else _assumed)
        self._network: float | None = None

    def observe(self, tokens: int, timings: Sequence[StageTiming], latency: float) -> None:
        """A step of `tokens` tokens came back `latency` seconds after it had left."""
        if not timings or not 0 < tokens <= _LARGEST:
            return
        self._all.add(tokens, sum(timing.compute_us for timing in timings) * 1e-6)
        self._slowest.add(tokens, max(timing.compute_us for timing in timings) * 1e-6)
        outside = outside_stages(timings, latency)
        known = self._network
        self._network = outside if known is None else known + _NETWORK_WEIGHT * (outside - known)

    def cycle(self, tokens: float) -> float:
        """Seconds from a step's leaving to its result, when nothing else is in its way."""
        return self.compute(tokens) + (self._network or 0.0)

    def compute(self, tokens: float) -> float:
        """Seconds that all stages together compute."""
        return self._all.at(tokens)

    def bottleneck(self, tokens: float) -> float:
        """Seconds that the slowest stage computes: the least that lies between two results."""
        if self._network is None:
            return self._all.at(tokens) / self._stages
        return self._slowest.at(tokens)

    def knows(self, tokens: int) -> bool:
        """Whether a step of just so many tokens was measured."""
        return self._all.has(tokens)

    @property
    def measured(self) -> bool:
        """Whether any step was."""
        return self._network is not None

    @property
    def depth(self) -> int:
        """How many steps fill the ring: as many as stages on a LAN, round trip over slowest stage on a WAN."""
        if self._network is None:
            return self._stages
        return max(round(self.cycle(1) / max(self.bottleneck(1), 1e-9)), 1)
