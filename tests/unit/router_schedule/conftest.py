"""A pipeline of toy stages without an event loop, and the naive model that its answers are compared with."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from shoal.resource import SpeculativeMode
from shoal.wire.messages import KvCapacity, RowOutcome, SamplingParams, StageTiming
from shoal_router.generation import FinishReason, GenerationRequest
from shoal_router.pipeline.fake import FakeStage, hashed_token
from shoal_router.schedule import policy, scheduler, speculation
from shoal_router.schedule.fake_drafter import FakeDrafter
from shoal_router.schedule.plan import SequenceEvent

VOCAB = 23
PRODUCT = SimpleNamespace(scheduler=scheduler, speculation=speculation, policy=policy)


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
class Drafting:
    """How a simulation drafts: what the policy is told, and how good the drafts are."""

    mode: SpeculativeMode = SpeculativeMode.AUTO
    max_tokens: int = 8
    max_chunks: int = 0
    accuracy: float = 0.7
    silence: float = 0.0
    confidence: float = 0.8
    seconds: float = math.inf
    seed: int = 0


@dataclass
class Simulation:
    """A scheduler and N stages with FIFO links; whoever drives it decides which link moves next."""

    capacity: KvCapacity
    stage_count: int
    depth: int
    prefill_chunk: int = 8
    max_waiting: int = 1000
    drafting: Drafting | None = None
    product: SimpleNamespace | None = None
    now: float = 0.0
    network: float = 0.0
    requests: dict[int, GenerationRequest] = field(default_factory=dict)
    texts: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, FinishReason] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    most_in_flight: int = 0
    guesses_sent: int = 0
    guesses_ahead: int = 0
    ids: Iterator[int] | None = None
    drafter: FakeDrafter | None = None
    """Given when several simulations hand sequences to each other: then they share it, the ids and the dicts above."""

    def __post_init__(self) -> None:
        product = self.product or PRODUCT
        self.speculator = None
        if self.drafting is not None:
            how = self.drafting
            self.drafter = self.drafter or FakeDrafter(
                lambda seq, ids: toy_token(list(ids), self.requests[seq].params),
                random.Random(how.seed),
                accuracy=how.accuracy,
                silence=how.silence,
                confidence=how.confidence,
                seconds=how.seconds,
            )
            settings = product.policy.SpeculationSettings(how.mode, how.max_tokens, how.max_chunks)
            self.speculator = product.speculation.Speculator(self.drafter, settings, vocab_size=VOCAB)
        self.scheduler = product.scheduler.Scheduler(
            self.capacity,
            depth=self.depth,
            prefill_chunk=self.prefill_chunk,
            max_waiting=self.max_waiting,
            speculator=self.speculator,
            ids=self.ids,
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
        before = self.scheduler.load.in_flight
        plan = self.scheduler.schedule(self.now)
        if released := self.scheduler.releases():
            self.links[0].append(released)
        if plan is None:
            self.check_nobody_waits_for_nothing()
            return False
        for row in plan.rows:
            self.check_row(row)
            if not row.known:
                assert len(plan.rows) == 1
                assert before < self.speculator.credits, "a row ran ahead without a credit"
        tokens, heads = sum(len(row.tokens) for row in plan.rows), plan.decode_rows
        assert tokens <= max(self.prefill_chunk, heads + 1), "the step is longer than a prompt's chunk"
        self.links[0].append((plan.rows, None))
        self.most_in_flight = max(self.most_in_flight, self.scheduler.load.in_flight)
        return True

    def check_nobody_waits_for_nothing(self) -> None:
        """A head is held back by micro-batches in flight, by a full pool, or by a draft that is being made, and then
        not for ever; never by rows that ran ahead."""
        scheduler = self.scheduler
        steps = len(scheduler._in_flight) - scheduler._steps_ahead
        full = scheduler._decoding_steps == scheduler._depth or steps > scheduler._depth
        held = scheduler.wake_at is not None and scheduler.wake_at > self.now
        assert not scheduler._ready or full or held or not scheduler._memory.blocks.available, (
            "a head waits for nothing"
        )

    def check_row(self, row) -> None:
        """No row feeds what is never read, and none is longer than a step may be."""
        if row.seq not in self.requests:
            return
        request = self.requests[row.seq]
        limit = min(len(request.prompt) + (request.max_tokens or 10**9), self.scheduler.max_context)
        assert row.past_len + len(row.tokens) < limit, "a row feeds the id at the limit"
        drafts = row.tokens[row.known :]
        assert not request.stop_token_ids & set(drafts), "a row feeds an id that ends the answer"
        assert all(token < VOCAB for token in drafts)
        self.guesses_sent += len(drafts)
        self.guesses_ahead += 0 if row.known else len(drafts)

    def advance(self, link: int) -> bool:
        """Move the oldest frame of a link on; through a stage, or (last link) back into the scheduler."""
        if not self.links[link]:
            return False
        frame = self.links[link].popleft()
        self.now += 0.01
        if link == self.stage_count:
            timings = [StageTiming(stage, 10_000 * (1 + stage % 2)) for stage in range(self.stage_count)]
            self.now += self.network
            self.record(self.scheduler.update(frame, self.now, timings))
        elif isinstance(frame[0], int):
            self.stages[link].release(frame)
            if link + 1 < self.stage_count:
                self.links[link + 1].append(frame)
        else:
            rows, _ = frame
            outcomes: tuple[RowOutcome, ...] = self.stages[link].run(rows)
            last = link + 1 == self.stage_count
            self.links[link + 1].append(outcomes if last else (rows, None))
        if not any(self.links):
            held = [{seq: (kept.length, kept.version) for seq, kept in stage.held.items()} for stage in self.stages]
            assert all(each == held[0] for each in held), "the stages do not hold the same positions"
        return True

    def record(self, events: list[SequenceEvent]) -> None:
        for event in events:
            assert event.seq in self.requests, "an event of a cancelled sequence"
            assert event.seq not in self.finished, "an event after the end"
            self.texts[event.seq] += event.tokens
            assert self.cached.get(event.seq, event.cached_tokens) == event.cached_tokens, "usage changed on the way"
            self.cached[event.seq] = event.cached_tokens
            if event.finish is not None:
                self.finished[event.seq] = event.finish
                expected, reason = plain_decode(self.requests[event.seq], self.scheduler.max_context)
                assert self.texts[event.seq] == expected
                assert event.finish is reason

    def lose_stages(self, capacity: KvCapacity, stages: int) -> None:
        """Frames in flight are gone, the new stages know nothing; texts go on where they were."""
        self.capacity, self.stage_count = capacity, stages
        self.build_stages()
        assert self.scheduler.reset_for_epoch(capacity, depth=stages) == []
        assert self.scheduler.releases() == ()

    def run_dry(self) -> None:
        """Run until nothing moves."""
        progress = True
        while progress:
            progress = False
            while self.pump():
                progress = True
            for link in range(self.stage_count + 1):
                progress = self.advance(link) or progress
            if not progress and self.scheduler.wake_at is not None:
                self.now, progress = self.scheduler.wake_at, True
            self.scheduler.check_integrity()

    def drain(self) -> None:
        """Run until nothing moves; then every request must be answered and every block back."""
        self.run_dry()
        assert set(self.finished) >= set(self.requests), "a sequence starved"
        load = self.scheduler.load
        assert load.free_blocks == load.blocks
        assert (load.running, load.waiting, load.in_flight) == (0, 0, 0)
        assert all(not stage.held for stage in self.stages), "a stage still holds a sequence"
        if self.drafter is not None:
            assert not self.drafter.texts, "the drafter was not told of an end"
            for source in self.speculator.stats.sources.values():
                assert 0 <= source.accepted <= source.verified <= source.proposed
                if self.drafting.accuracy == 1.0:
                    assert source.accepted == source.verified, "a draft was asked for behind other ids than it followed"
                if self.drafting.accuracy == 0.0:
                    assert source.accepted == 0


def random_schedule(seed: int, product: SimpleNamespace | None = None) -> Simulation:
    """One whole run with speculation in which everything is drawn: stages, pool, drafts, and the order of events.

    Whatever is wrong raises: a text that differs from plain decoding, a gap at a stage, a ledger, a starved sequence.
    """
    rng = random.Random(seed)
    stages, block_size = rng.randint(1, 4), rng.randint(1, 4)
    context = rng.randint(8, 40)
    capacity = KvCapacity(
        sequences=rng.randint(1, 4),
        blocks=-(-context // block_size) + rng.choice([0, 1, 2, 4, 16]),
        block_size=block_size,
        max_context=context,
        bytes=0,
        shares_blocks=rng.random() < 0.8,
    )
    drafting = Drafting(
        mode=rng.choice([SpeculativeMode.AUTO, SpeculativeMode.FIXED]),
        max_tokens=rng.choice([1, 2, 4, 8]),
        max_chunks=rng.choice([0, 0, 1, 2, 5, 12]),
        accuracy=rng.choice([0.0, 0.5, 0.8, 0.95, 1.0]),
        silence=rng.choice([0.0, 0.3]),
        confidence=rng.choice([0.3, 0.8, 1.0]),
        seconds=rng.choice([math.inf, 0.0, 0.004, 1.0]),
        seed=seed,
    )
    sim = Simulation(
        capacity,
        stages,
        stages + rng.randint(0, 1),
        rng.randint(2, 12),
        1000,
        drafting,
        product,
        network=rng.choice([0.0, 0.2]),
    )
    left = rng.randint(1, 6)
    # Some links are slower than others, so that rows pile up before a stage, or results do.
    weights = [rng.choice([1, 1, 5]) for _ in range(stages + 1)]
    lossy = rng.random() < 0.3
    while left or sim.scheduler.load.in_flight:
        action = rng.random()
        if left and action < 0.15:
            left -= 1
            prompt = tuple(rng.choices(range(2), k=rng.randint(1, min(context - 2, 16))))
            stop = frozenset(rng.sample(range(VOCAB), rng.randint(0, 2)))
            params = SamplingParams(seed=rng.randint(0, 1))
            sim.add(GenerationRequest("r", prompt, params, rng.choice([None, 1, 2, 9, 20]), stop))
        elif action < 0.17 and (alive := sorted(set(sim.requests) - set(sim.finished))):
            sim.cancel(rng.choice(alive))
        elif lossy and action < 0.19:
            size = rng.randint(1, 4)
            blocks = -(-context // size) + rng.choice([0, 2])
            stages = rng.randint(1, 4)
            weights = [rng.choice([1, 1, 5]) for _ in range(stages + 1)]
            fresh = KvCapacity(capacity.sequences, blocks, size, sim.scheduler.max_context, 0, capacity.shares_blocks)
            sim.lose_stages(fresh, stages)
        elif action < 0.5:
            sim.pump()
        else:
            sim.advance(rng.choices(range(stages + 1), weights)[0])
        sim.scheduler.check_integrity()
    sim.drain()
    return sim


@pytest.fixture(scope="session")
def simulation() -> type[Simulation]:
    return Simulation


@pytest.fixture(scope="session")
def drafting() -> type[Drafting]:
    return Drafting


@pytest.fixture(scope="session")
def fuzz() -> object:
    return random_schedule


@pytest.fixture(scope="session")
def plain() -> object:
    return plain_decode
