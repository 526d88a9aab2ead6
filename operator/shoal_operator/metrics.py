"""What Prometheus reads of the operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


def _registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


@dataclass(slots=True)
class Metrics:
    """All metrics, in a registry of their own."""

    registry: CollectorRegistry = field(default_factory=_registry)
    reconciles: Counter = field(init=False)
    seconds: Histogram = field(init=False)
    queue: Gauge = field(init=False)
    leading: Gauge = field(init=False)
    silence: Gauge = field(init=False)
    models: Gauge = field(init=False)

    def __post_init__(self) -> None:
        self.reconciles = Counter(
            "shoal_operator_reconciles", "Reconciles by their outcome", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "shoal_operator_reconcile_seconds", "Time of one reconcile", buckets=SECONDS, registry=self.registry
        )
        self.queue = Gauge(
            "shoal_operator_queue_length", "ShardedModels that wait or are worked on", registry=self.registry
        )
        self.leading = Gauge("shoal_operator_leading", "1 while this operator leads", registry=self.registry)
        self.silence = Gauge(
            "shoal_operator_watch_silence_seconds", "Since the quietest watch heard anything", registry=self.registry
        )
        self.models = Gauge(
            "shoal_operator_models", "ShardedModels by the status of Ready", ["ready"], registry=self.registry
        )
