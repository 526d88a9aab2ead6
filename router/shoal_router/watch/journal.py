"""The last requests, events and steps of a router, in bounded memory. Pure: time is an argument.

Steps are kept only while somebody watches; a request that ran unwatched still has its sums: how long each stage
computed and waited between its admission, its first token and its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from shoal.tracing import Traces
from shoal.wire.messages import StageTiming

REQUESTS: Final = 48
EVENTS: Final = 32
STEPS: Final = 600
"""Some ten seconds of a fast pipeline: more than a screen shows."""

Sums = tuple[StageTiming, ...]


class Outcome(StrEnum):
    """How a sequence ended. LEFT: the client left, or a stop string ended it."""

    RUNNING = "running"
    STOP = "stop"
    LENGTH = "length"
    LEFT = "left"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One sequence's stamps. The sums are those of its pipeline at admission, at the first token and at the end; they
    are dropped when the pipeline changes, as no difference between two pipelines means anything.
    """

    request_id: str
    seq: int
    pipeline: int
    arrived: float
    prompt_tokens: int
    trace: str = ""
    admitted: float | None = None
    first: float | None = None
    ended: float | None = None
    tokens: int = 0
    cached_tokens: int = 0
    losses: int = 0
    outcome: Outcome = Outcome.RUNNING
    at_admission: Sums = ()
    at_first: Sums = ()
    at_end: Sums = ()

    def admit(self, now: float, sums: Sums) -> None:
        """Its first row left; a replay does not count again."""
        if self.admitted is None:
            self.admitted, self.at_admission = now, sums

    def begin(self, now: float, sums: Sums, cached_tokens: int) -> None:
        """Its first token came."""
        self.first, self.at_first, self.cached_tokens = now, sums, cached_tokens

    def end(self, now: float, sums: Sums, outcome: Outcome) -> None:
        """It is over."""
        self.ended, self.at_end, self.outcome = now, sums, outcome

    def parts(self) -> Iterator[tuple[str, float, float]]:
        """Queue, prefill and decode with their begin and end, as far as it came."""
        stamps = [("queue", self.arrived), ("prefill", self.admitted), ("decode", self.first), ("", self.ended)]
        known = [(name, at) for name, at in stamps if at is not None]
        for (name, start), (_, end) in pairwise(known):
            yield name, start, end

    def facts(self) -> dict[str, str | int]:
        """What spans and log lines say of it."""
        return {
            "shoal.request_id": self.request_id,
            "shoal.sequence": self.seq,
            "shoal.pipeline": self.pipeline,
            "shoal.prompt_tokens": self.prompt_tokens,
            "shoal.cached_tokens": self.cached_tokens,
            "shoal.tokens": self.tokens,
            "shoal.losses": self.losses,
            "shoal.outcome": self.outcome.value,
        }

    def lose_pipeline(self) -> None:
        """What it has of a pipeline that is gone."""
        self.losses += 1
        self.at_admission = self.at_first = ()

    def go_on_at(self, pipeline: int) -> None:
        """Another pipeline computes it."""
        self.pipeline = pipeline
        self.at_admission = self.at_first = ()


class StepRecord(NamedTuple):
    """A step that came back: when, what it fed, and where its time went."""

    pipeline: int
    sent: float
    received: float
    tokens: int
    seqs: tuple[int, ...]
    timings: Sums


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a pipeline: `kind` is `opened` or `lost`."""

    at: float
    pipeline: int
    kind: str
    text: str


@dataclass(slots=True, eq=False)
class Journal:
    """See the module. `steps_seen` counts all steps that were ever kept: the position behind the newest. With `traces`
    the stamps of a request also become spans when it is over.
    """

    requests: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=REQUESTS))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    recoveries: int = 0
    steps_seen: int = 0
    watchers: int = 0
    traces: Traces | None = None
    _steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=STEPS))

    def begin(
        self, request_id: str, seq: int, pipeline: int, prompt_tokens: int, now: float, trace: str = ""
    ) -> RequestRecord:
        """A request was queued."""
        record = RequestRecord(request_id, seq, pipeline, now, prompt_tokens, trace)
        self.requests.append(record)
        return record

    def end(self, record: RequestRecord, now: float, sums: Sums, outcome: Outcome) -> None:
        """A request is over; only the first end counts."""
        if record.ended is not None:
            return
        record.end(now, sums, outcome)
        if self.traces is not None and record.trace:
            for name, start, end in record.parts():
                self.traces.record(name, record.trace, start, end, record.facts())

    def opened(self, pipeline: int, now: float, epoch: int, stages: int, lost_at: float | None) -> None:
        """A pipeline is open; after a loss that is a recovery."""
        self.recoveries += lost_at is not None
        after = f", {now - lost_at:.1f} s after it was lost" if lost_at is not None else ""
        held = f"{stages} stage{'s' if stages > 1 else ''}"
        self.events.append(Event(now, pipeline, "opened", f"{held} open in epoch {epoch}{after}"))

    def lost(self, pipeline: int, now: float, reason: str) -> None:
        """A pipeline was lost."""
        self.events.append(Event(now, pipeline, "lost", reason))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While somebody watches, steps are kept."""
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._steps.clear()

    def step(self, step: StepRecord) -> None:
        """A step came back. Call it only while somebody watches."""
        self._steps.append(step)
        self.steps_seen += 1

    def steps_since(self, position: int) -> Sequence[StepRecord]:
        """The steps that came behind `position` and are still kept."""
        fresh = min(self.steps_seen - position, len(self._steps))
        return [self._steps[index] for index in range(len(self._steps) - fresh, len(self._steps))]
