"""A pipeline of toy stages without an event loop, and the naive model that its answers are compared with."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from shoal.wire.messages import KvCapacity, RowOutcome, SamplingParams
from shoal_router.generation import FinishReason, GenerationRequest
from shoal_router.pipeline.fake import FakeStage, hashed_token
from shoal_router.schedule.plan import SequenceEvent
from shoal_router.schedule.scheduler import Scheduler

VOCAB = 23


def toy_token(ids: list[int], params: SamplingParams) -> int:
    """A small vocabulary, so that stop tokens are really met."""
    return hashed_token(ids, params, VOCAB)


def plain_decode(request: GenerationRequest, max_context: int) -> tuple[list[int], FinishReason]:
    """The naive model: one token after the other, nothing shared, nothing in flight."""
    ids = list(request.prompt)
    limit = min(len(ids) + (request.max_tokens or max_context), max_context)
    while True:
        ids.append(toy_token(ids, request.params))
        if ids[-1] in request.stop_token_ids:
            return ids[len(request.prompt) :], FinishReason.STOP
        if len(ids) >= limit:
            return ids[len(request.prompt) :], FinishReason.LENGTH


@dataclass
class Simulation:
    """A scheduler and N stages with FIFO links; whoever drives it decides which link moves next."""

    capacity: KvCapacity
    stage_count: int
    depth: int
    prefill_chunk: int = 8
    max_waiting: int = 1000
    now: float = 0.0
    requests: dict[int, GenerationRequest] = field(default_factory=dict)
    texts: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, FinishReason] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            self.capacity, depth=self.depth, prefill_chunk=self.prefill_chunk, max_waiting=self.max_waiting
        )
        self.build_stages()

    def build_stages(self) -> None:
        self.stages = [FakeStage(self.capacity, toy_token) for _ in range(self.stage_count)]
        self.links: list[deque] = [deque() for _ in range(self.stage_count + 1)]

    def add(self, request: GenerationRequest) -> int:
        seq = self.scheduler.add(request)
        self.requests[seq] = request
        self.texts[seq] = []
        return seq

    def cancel(self, seq: int) -> None:
        self.scheduler.cancel(seq)
        del self.requests[seq]

    def pump(self) -> bool:
        """One round of what the step loop does: schedule, then releases before the step."""
        plan = self.scheduler.schedule(self.now)
        if released := self.scheduler.releases():
            self.links[0].append(released)
        if plan is None:
            return False
        self.links[0].append((plan.rows, None))
        self.most_in_flight = max(self.most_in_flight, self.scheduler.load.in_flight)
        return True

    def advance(self, link: int) -> bool:
        """Move the oldest frame of a link on; through a stage, or (last link) back into the scheduler."""
        if not self.links[link]:
            return False
        frame = self.links[link].popleft()
        self.now += 0.01
        if link == self.stage_count:
            self.record(self.scheduler.update(frame, self.now))
        elif isinstance(frame[0], int):
            self.stages[link].release(frame)
            if link + 1 < self.stage_count:
                self.links[link + 1].append(frame)
        else:
            rows, _ = frame
            outcomes: tuple[RowOutcome, ...] = self.stages[link].run(rows)
            last = link + 1 == self.stage_count
            self.links[link + 1].append(outcomes if last else (rows, None))
        return True

    def record(self, events: list[SequenceEvent]) -> None:
        for event in events:
            assert event.seq in self.requests, "an event of a cancelled sequence"
            assert event.seq not in self.finished, "an event after the end"
            self.texts[event.seq] += event.tokens
            self.cached[event.seq] = event.cached_tokens
            if event.finish is not None:
                self.finished[event.seq] = event.finish
                expected, reason = plain_decode(self.requests[event.seq], self.scheduler.max_context)
                assert self.texts[event.seq] == expected
                assert event.finish is reason

    def drain(self) -> None:
        """Run until nothing moves; then every request must be answered and every block back."""
        progress = True
        while progress:
            progress = False
            while self.pump():
                progress = True
            for link in range(self.stage_count + 1):
                progress = self.advance(link) or progress
            self.scheduler.check_integrity()
        assert set(self.finished) >= set(self.requests), "a sequence starved"
        load = self.scheduler.load
        assert load.free_blocks == load.blocks
        assert (load.running, load.waiting, load.in_flight) == (0, 0, 0)
        assert all(not stage.held for stage in self.stages), "a stage still holds a sequence"


@pytest.fixture(scope="session")
def simulation() -> type[Simulation]:
    return Simulation


@pytest.fixture(scope="session")
def plain() -> object:
    return plain_decode
