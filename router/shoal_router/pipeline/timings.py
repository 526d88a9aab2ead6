"""Sums of where the stages' time went, since the pipeline opened: compute, queue, idle and send, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.wire.messages import StageTiming


class TimingSums:
    """Invariant: `steps` steps were added, each with a timing from every stage."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums: dict[int, list[int]] = {}

    def add(self, timings: Sequence[StageTiming]) -> None:
        """Add one step's timings."""
        self.steps += 1
        for timing in timings:
            sums = self._sums.setdefault(timing.stage, [0, 0, 0, 0])
            sums[0] += timing.compute_us
            sums[1] += timing.queue_us
            sums[2] += timing.idle_us
            sums[3] += timing.send_us

    def sums(self) -> tuple[StageTiming, ...]:
        """The sums in order of the stages."""
        return tuple(StageTiming(stage, *self._sums[stage]) for stage in sorted(self._sums))
