"""Every metric of a router that is counted while it happens; `levels` has those that are read when asked for.

Names are those that the ecosystem has (vLLM, TGI) with our prefix. Times are histograms in seconds, so that p50 and p99
can be had over any span.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

TTFT: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
TOKEN: Final = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)
STEP: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


def _registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


@dataclass(slots=True)
class Families:
    """All of them, in a registry of their own."""

    registry: CollectorRegistry = field(default_factory=_registry)
    ttft: Histogram = field(init=False)
    inter_token: Histogram = field(init=False)
    requests: Counter = field(init=False)
    rejected: Counter = field(init=False)
    prompt_tokens: Counter = field(init=False)
    tokens: Counter = field(init=False)
    prefix_hits: Counter = field(init=False)
    stage_step: Histogram = field(init=False)
    hop: Histogram = field(init=False)
    bubble: Gauge = field(init=False)
    lost: Counter = field(init=False)
    recovery: Counter = field(init=False)
    replayed: Counter = field(init=False)

    def __post_init__(self) -> None:
        registry = self.registry
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self.ttft = Histogram(
            "shoal_request_ttft_seconds",
            "From a sequence's arrival at the queue to its first token",
            buckets=TTFT,
            registry=registry,
        )
        self.inter_token = Histogram(
            "shoal_inter_token_seconds",
            "Time per token between two deliveries to one sequence, of which each may bring several tokens",
            buckets=TOKEN,
            registry=registry,
        )
        self.requests = Counter(
            "shoal_requests",
            "Sequences that were accepted and ended: stop (also by a stop string), length, cancelled (the client left),"
            " error",
            ["finish_reason"],
            registry=registry,
        )
        self.rejected = Counter(
            "shoal_rejected",
            "HTTP requests that were answered with an error, by its code",
            ["reason"],
            registry=registry,
        )
        self.prompt_tokens = Counter("shoal_prompt_tokens", "Tokens of accepted prompts", registry=registry)
        self.tokens = Counter("shoal_generated_tokens", "Tokens that were delivered", registry=registry)
        self.prefix_hits = Counter(
            "shoal_prefix_hit_tokens", "Tokens of prompts that the prefix cache had", registry=registry
        )
        self.stage_step = Histogram(
            "shoal_stage_step_seconds",
            "Where a stage's time went for a step: compute, wait (the step lay there until the one before it was done),"
            " send (giving it to the next hop)",
            ["pipeline", "stage", "phase"],
            buckets=STEP,
            registry=registry,
        )
        self.hop = Histogram(
            "shoal_hop_seconds",
            "Time that a step spent in no stage: hop=ring is all hops of its way round together, the router's own part"
            " included",
            ["pipeline", "hop"],
            buckets=STEP,
            registry=registry,
        )
        self.bubble = Gauge(
            "shoal_pipeline_bubble_ratio",
            "Share of the stages' time, while any step was in flight, in which they computed nothing",
            ["pipeline"],
            registry=registry,
        )
        self.lost = Counter(
            "shoal_pipeline_lost", "Pipelines that were lost", ["pipeline", "reason"], registry=registry
        )
        self.recovery = Counter(
            "shoal_recovery",
            "Answers under way when their pipeline was lost: resumed on its successor, moved to another, failed",
            ["outcome"],
            registry=registry,
        )
        self.replayed = Counter(
            "shoal_replayed_tokens", "Tokens of prompts and answers that were computed again", registry=registry
        )
