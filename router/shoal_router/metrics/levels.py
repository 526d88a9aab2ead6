"""What is read when Prometheus asks: levels that the router keeps anyway, and counts that others keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal_router.generation import GeneratorStatus, PipelineStatus
from shoal_router.schedule.speculation import SpeculationStats

RefusedBy = Mapping[int, Mapping[tuple[str, str], int]]
"""By pipeline: counts by (where, reason)."""


class Levels(Collector):
    """Asked on the event loop, where what it reads changes."""

    def __init__(
        self,
        status: Callable[[], GeneratorStatus],
        speculation: SpeculationStats,
        refused: Callable[[], RefusedBy],
    ) -> None:
        self._status = status
        self._speculation = speculation
        self._refused = refused

    def describe(self) -> list[Metric]:
        """Nothing: what a registry would compare is made by `collect` alone."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family, with a sample for each label that there is."""
        status = self._status()
        yield GaugeMetricFamily("shoal_queue_depth", "Sequences that wait to be computed", status.waiting)
        yield GaugeMetricFamily("shoal_running_sequences", "Sequences that are computed", status.running)
        yield self._of_each("shoal_pipeline_open", "1: the pipeline answers", status, lambda each: each.ready)
        yield self._of_each("shoal_pipeline_epoch", "Grows when it is opened anew", status, lambda each: each.epoch)
        blocks = GaugeMetricFamily(
            "shoal_kv_blocks",
            "KV blocks of a pipeline: held by sequences, or free (the prefix cache's are free until needed)",
            labels=["pipeline", "state"],
        )
        for each in status.pipelines:
            blocks.add_metric([str(each.index), "free"], each.kv_blocks_free)
            blocks.add_metric([str(each.index), "held"], each.kv_blocks - each.kv_blocks_free)
        yield blocks
        yield self._drafts()
        yield CounterMetricFamily(
            "shoal_draft_stale_rows", "Rows of drafts that came back for nothing", self._speculation.stale
        )
        refused = CounterMetricFamily(
            "shoal_refused",
            "Frames, calls and peers that the router or a stage refused, by reason",
            labels=["pipeline", "where", "reason"],
        )
        for index, counts in self._refused().items():
            for (where, reason), number in counts.items():
                refused.add_metric([str(index), where, reason], number)
        yield refused

    def _of_each(
        self, name: str, meaning: str, status: GeneratorStatus, value: Callable[[PipelineStatus], float]
    ) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=["pipeline"])
        for each in status.pipelines:
            family.add_metric([str(each.index)], value(each))
        return family

    def _drafts(self) -> Metric:
        family = CounterMetricFamily(
            "shoal_draft_tokens",
            "Drafted tokens: sent to the stages, and of those that were judged accepted or rejected",
            labels=["source", "outcome"],
        )
        for source, stats in self._speculation.sources.items():
            family.add_metric([source, "sent"], stats.proposed)
            family.add_metric([source, "accepted"], stats.accepted)
            family.add_metric([source, "rejected"], stats.verified - stats.accepted)
        return family
