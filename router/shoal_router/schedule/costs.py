"""What a step costs, measured: the stages' compute by tokens in the step, and what the way round the ring takes.

Two sums decide about speculation. The *cycle* is how long a step is under way: all stages one after the other and the
network between them. The *bottleneck* is the slowest stage: no two steps can follow each other faster. Both are fitted
by a line over the step's tokens, in which older steps fade; before a second width was seen, the line has the slope of
a small decoder on a CPU. A line is good enough: what is asked is whether one more token pays, close to where we are.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.wire.messages import StageTiming

_DECAY = 0.97
_SLOPE = 0.08  # of a step with one token: what one more costs until measured
_SLOPE_WEIGHT = 4.0  # how many squared tokens of spread the prior slope is worth
_LARGEST = 64  # tokens; beyond that a step is a prompt's, whose line is another
_NETWORK_WEIGHT = 0.1


class _Line:
    """A least-squares line through (tokens, seconds) with fading memory, held to a prior slope."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        self._weight = self._weight * _DECAY + 1.0
        self._x = self._x * _DECAY + x
        self._y = self._y * _DECAY + y
        self._xx = self._xx * _DECAY + x * x
        self._xy = self._xy * _DECAY + x * y

    def fit(self) -> tuple[float, float]:
        """Seconds of a step with one token, and of each further one."""
        if not self._weight:
            return 1.0, _SLOPE
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = max(self._xx - self._x * mean_x, 0.0)
        together = self._xy - self._x * mean_y
        assumed = _SLOPE * mean_y / (1.0 + _SLOPE * (mean_x - 1.0))
        slope = max((together + _SLOPE_WEIGHT * assumed) / (spread + _SLOPE_WEIGHT), 0.0)
        return max(mean_y - slope * (mean_x - 1.0), mean_y / mean_x), slope


class StepCosts:
    """Seconds of a step on one pipeline. Until a step was measured, `stages` equal stages without a network."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._all = _Line()
        self._slowest = _Line()
        self._network: float | None = None
        self._fitted: tuple[float, float, float, float] | None = None

    def observe(self, tokens: int, timings: Sequence[StageTiming], latency: float) -> None:
        """A step of `tokens` tokens came back `latency` seconds after it had left."""
        if not timings or not 0 < tokens <= _LARGEST:
            return
        self._all.add(tokens, sum(timing.compute_us for timing in timings) * 1e-6)
        self._slowest.add(tokens, max(timing.compute_us for timing in timings) * 1e-6)
        inside = sum(timing.compute_us + timing.queue_us for timing in timings) * 1e-6
        outside = max(latency - inside, 0.0)
        known = self._network
        self._network = outside if known is None else known + _NETWORK_WEIGHT * (outside - known)
        self._fitted = None

    def cycle(self, tokens: float) -> float:
        """Seconds from a step's leaving to its result, when nothing else is in its way."""
        return self.compute(tokens) + (self._network or 0.0)

    def compute(self, tokens: float) -> float:
        """Seconds that all stages together compute."""
        first, slope, _, _ = self._fit()
        return first + slope * (tokens - 1)

    def bottleneck(self, tokens: float) -> float:
        """Seconds that the slowest stage computes: the least that lies between two results."""
        _, _, first, slope = self._fit()
        return first + slope * (tokens - 1)

    @property
    def cycle_slope(self) -> float:
        """Seconds that one more token adds to the cycle."""
        return self._fit()[1]

    @property
    def bottleneck_slope(self) -> float:
        """Seconds that one more token adds to the slowest stage."""
        return self._fit()[3]

    @property
    def depth(self) -> int:
        """How many steps fill the ring: as many as stages on a LAN, round trip over slowest stage on a WAN."""
        if self._network is None:
            return self._stages
        return max(round(self.cycle(1) / max(self.bottleneck(1), 1e-9)), 1)

    def _fit(self) -> tuple[float, float, float, float]:
        if self._fitted is None:
            all_, slowest = self._all.fit(), self._slowest.fit()
            if self._network is None:
                slowest = all_[0] / self._stages, all_[1] / self._stages
            self._fitted = *all_, *slowest
        return self._fitted
