"""The Generator of a router: a step loop for each pipeline of the plan, and above them whoever hands out the work.

    generate ──> choice ──> StepLoop of a pipeline ──> Mailbox ──> the request's iterator
                              │        ▲
                              └────────┘  moves: it was lost, left the plan, or is full while another is not

One task tends them: it looks at the plan now and then, starts a loop for every pipeline that has appeared, and takes
those that have vanished out of service. Whenever a pipeline is lost while another is open, its sequences go on there at
once, computed again from their ids. All that a sequence is goes with it (ids, sampling, seed, limit, group, number, the
losses it has survived), so its stream goes on as if nothing had happened. While no pipeline is open, sequences wait
where they are, each for as long as its loop allows, for whichever opens first.

Loops number their sequences together. So arrival is the same everywhere, the oldest sequence goes first wherever it
goes on, and one drafter, which knows sequences by their number, serves all loops.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from shoal.errors import PlanError
from shoal.tasks import end_task
from shoal_router.fleet.choice import limit_of, ranking
from shoal_router.fleet.moves import move_all, offers_of, spread
from shoal_router.generation import (
    GenerationRequest,
    GeneratorStatus,
    PipelineStatus,
    PipelineUnavailable,
    QueueFull,
    TokenDelta,
)
from shoal_router.mailbox import Mailbox, answer
from shoal_router.observer import StepObserver
from shoal_router.pipeline.board import StageBoard
from shoal_router.pipeline.interface import Pipeline, PipelineOpener, Progress
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.speculation import SpeculationStats
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.watch.journal import Journal
from shoal_router.watch.view import PipelineView

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the plan is looked at, and whether somebody waits who need not."""


@dataclass(slots=True)
class _Door:
    """An opener that can be told not to open its pipeline any more."""

    index: int
    opener: PipelineOpener
    shut: bool = False

    @property
    def board(self) -> StageBoard:
        """See PipelineOpener.board."""
        return self.opener.board

    async def open(self, *, deadline_seconds: float, progress: Progress) -> Pipeline:
        """See PipelineOpener.open."""
        if self.shut:
            raise PlanError(f"pipeline {self.index} is not in the plan any more")
        return await self.opener.open(deadline_seconds=deadline_seconds, progress=progress)


class Fleet:
    """See Generator. Invariant: a sequence is at exactly one loop, its mailbox's home; new ones come to `_loops` only.

    `planned` says which pipelines there are, and raises PlanError when that cannot be known; `opener_of` gives the
    opener of each, `observer_of` whoever counts what happens there.
    """

    def __init__(
        self,
        planned: Callable[[], Collection[int]],
        opener_of: Callable[[int], PipelineOpener],
        settings: StepLoopSettings | None = None,
        *,
        drafter: GuardedDrafter | None = None,
        clock: Callable[[], float] = time.monotonic,
        look_seconds: float = LOOK_SECONDS,
        observer_of: Callable[[int], StepObserver] = lambda _: StepObserver(),
    ) -> None:
        self._planned = planned
        self._opener_of = opener_of
        self._observer_of = observer_of
        self._settings = settings or StepLoopSettings()
        # One guard for all: a drafter that broke at one loop missed what happened there, and is of no use at others.
        self._drafter = drafter
        self._clock = clock
        self._look_seconds = look_seconds
        self.speculation = SpeculationStats()
        self.journal = Journal()
        self._ids = count()
        self._loops: dict[int, StepLoop] = {}
        self._doors: dict[int, _Door] = {}
        self._leaving: list[StepLoop] = []
        self._detail = "not started"
        self._tending: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._opened = asyncio.Event()

    # ---- life

    async def start(self) -> None:
        """Begin to open the plan's pipelines, and return at once; `status` says how far they got."""
        await self._follow_plan()
        self._tending = asyncio.create_task(self._tend(), name="fleet")

    async def wait_ready(self, timeout: float) -> None:
        """Wait until a pipeline is open. Raises PipelineUnavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._opened.wait()
        except TimeoutError:
            raise self._unavailable() from None

    async def stop(self) -> None:
        """Fail what is still running and close every pipeline."""
        await end_task(self._tending)
        self._tending = None
        await asyncio.gather(*(loop.stop() for loop in self._everywhere), *self._closing)

    def status(self) -> GeneratorStatus:
        """See Generator.status."""
        each = {index: loop.status() for index, loop in sorted(self._loops.items())}
        everywhere = [*each.values(), *(loop.status() for loop in self._leaving)]
        ready = [status for status in each.values() if status.ready]
        return GeneratorStatus(
            ready=bool(ready),
            detail=self._explain(each),
            max_context=max((status.max_context for status in ready or each.values()), default=0),
            epoch=max((status.epoch for status in each.values()), default=0),
            running=sum(status.running for status in everywhere),
            waiting=sum(status.waiting for status in everywhere),
            kv_blocks=sum(status.kv_blocks for status in each.values()),
            kv_blocks_free=sum(status.kv_blocks_free for status in each.values()),
            timings=next(iter(each.values())).timings if len(each) == 1 else (),
            steps=sum(status.steps for status in each.values()),
            pipelines=tuple(_of_pipeline(index, status) for index, status in each.items()),
        )

    def look(self) -> tuple[PipelineView, ...]:
        """See Watched.look."""
        return tuple(self._view(index, loop) for index, loop in sorted(self._loops.items()))

    def _view(self, index: int, loop: StepLoop) -> PipelineView:
        load = loop.scheduler.load if loop.scheduler is not None else None
        return PipelineView(
            status=_of_pipeline(index, loop.status()),
            stages=self._doors[index].board.views,
            progress=loop.progress,
            generated=loop.generated,
            slots=load.slots if load is not None else 0,
            in_flight=load.in_flight if load is not None else 0,
        )

    def _explain(self, each: Mapping[int, GeneratorStatus]) -> str:
        """What a lone pipeline says; of several, what each does."""
        if len(each) < 2:
            return next((status.detail for status in each.values()), self._detail)
        lines = "; ".join(f"pipeline {index}: {status.detail}" for index, status in each.items())
        return f"{sum(status.ready for status in each.values())} of {len(each)} pipelines are open: {lines}"

    # ---- requests

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """See Generator.generate."""
        return answer(lambda: self._enqueue(request))

    def _enqueue(self, request: GenerationRequest) -> Mailbox:
        """Queue the request at the best pipeline, or the next best where no more may wait."""
        offers = offers_of(self._loops, request.prompt)
        if not offers:
            raise self._unavailable()
        tokens = len(request.prompt)
        limit = limit_of(offers, prompt=tokens, answer=request.max_tokens)
        full: QueueFull | None = None
        for index in ranking(offers, tokens=tokens, limit=limit):
            try:
                return self._loops[index].enqueue(request)
            except QueueFull as error:
                full = full or error
        assert full is not None, "the pipeline with the largest context is always among them"
        raise full

    def _unavailable(self) -> PipelineUnavailable:
        return PipelineUnavailable(f"no pipeline is open: {self.status().detail}", self._settings.longest_backoff)

    def nudge(self) -> None:
        """The drafter has more to offer than when it was last asked. On the event loop only."""
        for loop in self._everywhere:
            loop.nudge()

    # ---- pipelines come and go

    @property
    def _everywhere(self) -> tuple[StepLoop, ...]:
        return (*self._loops.values(), *self._leaving)

    def _changed(self) -> None:
        """A pipeline was opened or lost."""
        if any(loop.is_open for loop in self._loops.values()):
            self._opened.set()
        else:
            self._opened.clear()
        self._news.set()

    async def _tend(self) -> None:
        """Whenever a pipeline was opened or lost, and now and then."""
        while True:
            try:
                self._move()
                await self._follow_plan()
            except Exception as error:  # noqa: BLE001 - the service must outlive a defect; it is logged in full
                _log.error("tending the pipelines met a defect", exc_info=error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_seconds):
                    await self._news.wait()
            self._news.clear()

    def _move(self) -> None:
        """Put every sequence where it can be computed now."""
        for loop in self._everywhere:
            if (loop in self._leaving or not loop.is_open) and (moved := move_all(loop, self._loops)):
                _log.info("%d answer%s at another pipeline", moved, "s go on" if moved > 1 else " goes on")
        spread(self._loops)
        # A pipeline that left the plan is closed when it holds nothing more; what no other can hold ends where it is.
        for loop in [loop for loop in self._leaving if not loop.mailboxes]:
            self._leaving.remove(loop)
            closing = asyncio.create_task(loop.stop(), name="close a pipeline")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _follow_plan(self) -> None:
        """Start what is new in the plan; take out of service what is not in it any more."""
        try:
            planned = set(self._planned())
        except PlanError as error:
            # A plan that cannot be read says nothing of the pipelines that it had before: they serve on.
            self._note(str(error))
            return
        self._note(f"the plan has {len(planned)} pipeline{'s' if len(planned) != 1 else ''}")
        for index in sorted(planned - self._loops.keys()):
            await self._take_in(index)
        for index in self._loops.keys() - planned:
            self._doors.pop(index).shut = True
            self._leaving.append(self._loops.pop(index))
            _log.info("pipeline %d is not in the plan any more: its answers go on elsewhere", index)
            self._changed()

    async def _take_in(self, index: int) -> None:
        door = self._doors[index] = _Door(index, self._opener_of(index))
        loop = self._loops[index] = StepLoop(
            door,
            self._settings,
            drafter=self._drafter,
            clock=self._clock,
            ids=self._ids,
            speculation=self.speculation,
            journal=self.journal,
            index=index,
            when_changed=self._changed,
            observer=self._observer_of(index),
        )
        await loop.start()

    def _note(self, line: str) -> None:
        if line != self._detail:
            self._detail = line
            _log.info("pipelines: %s", line)


def _of_pipeline(index: int, status: GeneratorStatus) -> PipelineStatus:
    return PipelineStatus(
        index=index,
        ready=status.ready,
        detail=status.detail,
        max_context=status.max_context,
        epoch=status.epoch,
        running=status.running,
        waiting=status.waiting,
        kv_blocks=status.kv_blocks,
        kv_blocks_free=status.kv_blocks_free,
        timings=status.timings,
        steps=status.steps,
    )
