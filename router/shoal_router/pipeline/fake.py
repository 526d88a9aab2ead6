"""A pipeline in memory, for tests of everything above the seam: real KV bookkeeping, a deterministic toy model.

A FakeStage keeps the ids that it was fed exactly where the rows say (block table or slot) and reads them back from
there when it draws the next token. So a wrong block table, a block freed too early or a gap changes the text or
raises, as it would on a real stage. Sampling follows the rules of `Row`, drafts included.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from shoal.errors import StageError
from shoal.plan.document import Device, MemorySum, PipelinePlan, StagePlan
from shoal.wire.errors import InvalidFrame, StageExhausted
from shoal.wire.messages import (
    KvCapacity,
    Release,
    Row,
    RowOutcome,
    SamplingParams,
    StageProgress,
    StageTiming,
    Step,
    StepResult,
    TokenLogprob,
)
from shoal_router.pipeline.board import StageBoard
from shoal_router.pipeline.interface import PipelineFacts, Progress
from shoal_router.pipeline.plan_source import PlannedPipeline

NextToken = Callable[[Sequence[int], SamplingParams], int]
"""The toy model: the ids at positions 0 … p and the sampling parameters give the id at p + 1."""

Gate = Callable[[Step], Awaitable[None]]
"""Awaited before a step's result comes out: a test holds results back with it. Order is kept in any case."""

FAKE_CAPACITY = KvCapacity(sequences=8, blocks=256, block_size=16, max_context=512, bytes=0, shares_blocks=True)


def hashed_token(ids: Sequence[int], params: SamplingParams, vocab_size: int = 997) -> int:
    """A token that depends on every id before it and on the seed, so that any mix-up changes the text."""
    return zlib.crc32(repr((tuple(ids), params.seed)).encode()) % vocab_size


@dataclass(slots=True)
class _Held:
    """What a stage knows of one sequence."""

    params: SamplingParams
    length: int
    version: int
    slot: int


@dataclass(slots=True)
class FakeStage:
    """The KV memory of one stage, and the toy model that reads it."""

    capacity: KvCapacity = FAKE_CAPACITY
    next_token: NextToken = hashed_token
    held: dict[int, _Held] = field(default_factory=dict)
    _memory: dict[tuple[int, int], int] = field(default_factory=dict)

    def run(self, rows: Sequence[Row]) -> tuple[RowOutcome, ...]:
        """Feed the rows and draw what they ask for. Raises InvalidFrame or StageExhausted as a real stage would."""
        return tuple(outcome for row in rows if (outcome := self._run_row(row)) is not None)

    def release(self, seqs: Sequence[int]) -> None:
        """Forget the sequences; unknown ones are ignored."""
        for seq in seqs:
            self.held.pop(seq, None)

    def _run_row(self, row: Row) -> RowOutcome | None:
        held = self._hold(row)
        end = row.past_len + len(row.tokens)
        if not row.tokens or row.past_len > held.length or row.version < held.version:
            raise InvalidFrame(f"sequence {row.seq}: a row at {row.past_len} does not follow position {held.length}")
        if end > self.capacity.max_context:
            raise InvalidFrame(f"sequence {row.seq}: position {end} lies beyond the context")
        for offset, token in enumerate(row.tokens):
            self._memory[self._place(row, row.past_len + offset)] = token
        held.length, held.version = end, row.version
        if not row.sample:
            return None
        ids = [self._memory[self._place(row, position)] for position in range(end)]
        drawn: list[int] = []
        for index in row.sampled:
            drawn.append(self.next_token(ids[: row.past_len + index + 1], held.params))
            if index + 1 < len(row.tokens) and drawn[-1] != row.tokens[index + 1]:
                break
        logprobs: tuple[TokenLogprob, ...] = ()
        if held.params.logprobs is not None:
            logprobs = tuple(_fake_logprob(token, held.params.logprobs) for token in drawn)
        base = row.past_len + max(row.known - 1, 0) + 1
        return RowOutcome(seq=row.seq, version=row.version, base=base, tokens=tuple(drawn), logprobs=logprobs)

    def _hold(self, row: Row) -> _Held:
        held = self.held.get(row.seq)
        if row.start is None:
            if held is None:
                raise InvalidFrame(f"sequence {row.seq} is not known here")
            return held
        if held is not None:
            raise InvalidFrame(f"sequence {row.seq} is held already: release it first")
        if len(row.start.history) != row.past_len or (row.past_len and not self.capacity.shares_blocks):
            raise InvalidFrame(f"sequence {row.seq} starts at {row.past_len} without the ids before it")
        if any(other.slot == row.slot for seq, other in self.held.items() if seq != row.seq):
            raise StageExhausted(f"slot {row.slot} is taken")
        held = _Held(row.start.params, row.past_len, row.version, row.slot)
        self.held[row.seq] = held
        return held

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        if not self.capacity.shares_blocks:
            return (-1 - row.slot, position)
        index, offset = divmod(position, self.capacity.block_size)
        if index >= len(row.blocks) or row.blocks[index] >= self.capacity.blocks:
            raise InvalidFrame(f"sequence {row.seq}: no block for position {position}")
        return (row.blocks[index], offset)


def _fake_logprob(token: int, alternatives: int) -> TokenLogprob:
    top = tuple((token + rank, -0.5 - rank) for rank in range(alternatives))
    return TokenLogprob(logprob=-0.5, top=top)


async def _open_gate(_: Step) -> None:
    """The default gate: let the event loop turn once, as a real network would."""
    await asyncio.sleep(0)


class FakePipeline:
    """FIFO stages in memory. `held` shows what each stage still keeps; `break_off` loses the pipeline."""

    def __init__(
        self,
        *,
        capacity: KvCapacity = FAKE_CAPACITY,
        stages: int = 2,
        next_token: NextToken = hashed_token,
        gate: Gate = _open_gate,
        epoch: int = 1,
    ) -> None:
        self._facts = PipelineFacts(epoch, stages, "f" * 64, capacity, vocab_size=1 << 20)
        self.stages = [FakeStage(capacity, next_token) for _ in range(stages)]
        self.closed = False
        self.most_in_flight = 0
        self._gate = gate
        self._queue: deque[Step | Release] = deque()
        self._in_flight = 0
        self._numbers = count()
        self._news = asyncio.Event()
        self._broken = asyncio.Event()
        self._lost: StageError | None = None

    @property
    def facts(self) -> PipelineFacts:
        """What a real pipeline would have learned from its stages."""
        return self._facts

    @property
    def progress(self) -> tuple[StageProgress, ...]:
        """See Pipeline.progress: stages in memory have no pulse."""
        return ()

    @property
    def held(self) -> list[set[int]]:
        """The sequences that each stage keeps memory for."""
        return [set(stage.held) for stage in self.stages]

    def submit(self, step: Step) -> None:
        """Queue a step."""
        self._queue.append(step)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        self._news.set()

    def release(self, seqs: Sequence[int]) -> None:
        """Queue a release: it takes effect behind the steps before it."""
        self._queue.append(Release(tuple(seqs)))
        self._apply_releases()

    def break_off(self, error: StageError) -> None:
        """Lose the pipeline, as when a stage's process dies."""
        if self._lost is None:
            self._lost = error
        self._news.set()
        self._broken.set()

    async def result(self) -> StepResult:
        """Run the oldest step through every stage."""
        while True:
            if self._lost is not None:
                raise self._lost
            if self._queue:
                break
            self._news.clear()
            await self._news.wait()
        step = self._queue[0]
        assert isinstance(step, Step), "releases at the head are applied at once"
        await self._pass_gate(step)
        if self._lost is not None:
            raise self._lost
        self._queue.popleft()
        self._in_flight -= 1
        try:
            outcomes = [stage.run(step.rows) for stage in self.stages]
        except StageError as error:
            self.break_off(error)
            raise
        self._apply_releases()
        timings = tuple(StageTiming(stage=index, compute_us=1000) for index in range(len(self.stages)))
        return StepResult(self._facts.epoch, next(self._numbers), outcomes[-1], timings)

    async def close(self) -> None:
        """Forget everything."""
        self.closed = True
        self.break_off(StageError("the pipeline is closed"))

    async def _pass_gate(self, step: Step) -> None:
        """Wait for the gate, or for the pipeline to be lost while a test holds it closed."""
        waits = [asyncio.ensure_future(self._gate(step)), asyncio.ensure_future(self._broken.wait())]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in done:
                wait.result()
        finally:
            for wait in waits:
                wait.cancel()

    def _apply_releases(self) -> None:
        while self._queue and isinstance(self._queue[0], Release):
            release = self._queue.popleft()
            assert isinstance(release, Release)
            for stage in self.stages:
                stage.release(release.seqs)


@dataclass(slots=True)
class FakeOpener:
    """Opens FakePipelines, each with the next epoch; an error in `failures` is raised instead, first one first."""

    capacity: KvCapacity = FAKE_CAPACITY
    stages: int = 2
    next_token: NextToken = hashed_token
    gate: Gate = _open_gate
    failures: deque[StageError] = field(default_factory=deque)
    opened: list[FakePipeline] = field(default_factory=list)
    board: StageBoard = field(default_factory=StageBoard)

    async def open(self, *, deadline_seconds: float, progress: Progress) -> FakePipeline:
        """A fresh pipeline, or the next failure."""
        progress(f"opening a fake pipeline of {self.stages} stages within {deadline_seconds:.0f} s")
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.popleft()
        pipeline = FakePipeline(
            capacity=self.capacity,
            stages=self.stages,
            next_token=self.next_token,
            gate=self.gate,
            epoch=len(self.opened) + 1,
        )
        self.opened.append(pipeline)
        return pipeline


def planned_at(addresses: Sequence[str], ranges: Sequence[tuple[int, int]], digest: str | None) -> PlannedPipeline:
    """The plan of stages that somebody has started already, with their block ranges and without their sums."""
    nothing = MemorySum(weights=0, load_peak=0, kv=0, runtime=0)
    stages = tuple(
        StagePlan(
            index=index,
            node="here",
            device=Device.CPU,
            block_start=start,
            block_end=end,
            memory=nothing,
            address=address,
        )
        for index, (address, (start, end)) in enumerate(zip(addresses, ranges, strict=True))
    )
    return PlannedPipeline(PipelinePlan(index=0, stages=stages), digest)
