"""One pipeline's steps and recoveries, counted as they happen. See StepObserver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.errors import StageError
from shoal.wire.messages import StageTiming, outside_stages
from shoal_router.metrics.bubble import Bubble
from shoal_router.metrics.families import Families
from shoal_router.observer import StepObserver

_Observe = Callable[[float], None]


class PipelineMetrics(StepObserver):
    """See StepObserver."""

    def __init__(self, families: Families, index: int) -> None:
        self._families = families
        self._pipeline = str(index)
        self._bubble = Bubble(1)
        self._hop = families.hop.labels(self._pipeline, "ring")
        # Looking a child up costs as much as counting; each stage's three are kept.
        self._phases: list[tuple[_Observe, _Observe, _Observe]] = []
        families.bubble.labels(self._pipeline).set_function(lambda: self._bubble.ratio)

    def opened(self, stages: int) -> None:
        """See StepObserver.opened."""
        self._bubble = Bubble(stages)
        child = self._families.stage_step.labels
        self._phases = [
            (
                child(self._pipeline, str(stage), "compute").observe,
                child(self._pipeline, str(stage), "wait").observe,
                child(self._pipeline, str(stage), "send").observe,
            )
            for stage in range(stages)
        ]

    def submitted(self, now: float) -> None:
        """See StepObserver.submitted."""
        self._bubble.submitted(now)

    def returned(self, now: float, sent: float, timings: Sequence[StageTiming]) -> None:
        """See StepObserver.returned."""
        compute = 0
        for (observe_compute, observe_wait, observe_send), timing in zip(self._phases, timings, strict=False):
            observe_compute(timing.compute_us / 1e6)
            observe_wait(timing.queue_us / 1e6)
            observe_send(timing.send_us / 1e6)
            compute += timing.compute_us
        self._bubble.returned(now, compute / 1e6)
        self._hop.observe(outside_stages(timings, now - sent))

    def lost(self, error: StageError) -> None:
        """See StepObserver.lost."""
        self._families.lost.labels(self._pipeline, type(error).__name__).inc()

    def resumed(self, tokens: int) -> None:
        """See StepObserver.resumed."""
        self._replay("resumed", tokens)

    def moved(self, tokens: int) -> None:
        """See StepObserver.moved."""
        self._replay("moved", tokens)

    def failed(self) -> None:
        """See StepObserver.failed."""
        self._families.recovery.labels("failed").inc()

    def _replay(self, outcome: str, tokens: int) -> None:
        self._families.recovery.labels(outcome).inc()
        self._families.replayed.inc(tokens)
