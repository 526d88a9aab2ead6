"""The step loop: the Generator behind the API. Requests come in, steps go round the pipeline, tokens go out.

    generate ──> Scheduler.add ─┐                       ┌─> mailbox of each sequence ──> the request's iterator
                                ├─ pump ─> Pipeline ─> result ─> Scheduler.update
    closed iterator ─> cancel ──┘            (several steps in flight)

Everything happens on one event loop, so nothing is locked; the scheduler is pure, the pipeline never makes the pump
wait. One task opens the pipeline, reads its results, and when it is lost opens the next one: sequences that were
running are then computed again from their ids (the same seed and position give the same token) and their streams go on.
How often and how long a request waits for that is bounded; afterwards it fails with the reason, while the loop keeps
trying, so that the service is back as soon as the stages are.

With a drafter, sequences speculate (schedule/speculation): the loop only passes it on, with the settings and what the
stages measured. A drafter that computes elsewhere calls `nudge` when it has more to offer.

Where a router has several pipelines, each has a loop of its own, and a Fleet (fleet/) above them hands sequences from
one to another (`hand_over`, `take_over`). Loops that do so number their sequences together and share the drafter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from shoal.errors import ShoalError, StageError
from shoal.resource import SpeculativeMode
from shoal.tasks import end_task
from shoal.tracing import current_trace
from shoal.wire.errors import StageNotReady
from shoal.wire.messages import StageProgress, StageTiming, Step
from shoal_router.generation import (
    FinishReason,
    GenerationFailed,
    GenerationRequest,
    GeneratorStatus,
    GrammarFailed,
    PipelineUnavailable,
    TokenDelta,
)
from shoal_router.mailbox import Mailbox, answer
from shoal_router.observer import StepObserver
from shoal_router.pipeline.interface import Pipeline, PipelineOpener
from shoal_router.pipeline.timings import TimingSums
from shoal_router.request_check import check_request
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.plan import SequenceEvent
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.schedule.scheduler import Scheduler
from shoal_router.schedule.sequence import Sequence
from shoal_router.schedule.speculation import SpeculationStats, Speculator
from shoal_router.watch.journal import Journal, Outcome, StepRecord

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepLoopSettings:
    """Bounds of the step loop; seconds where nothing else is said.

    `micro_batches`: steps in flight, 0 = as many as stages. `recovery_attempts`: lost pipelines that a running request
    survives. `recovery_seconds`: how long it waits for the next one. `open_seconds`: how long one attempt to open may
    take while nobody waits.
    """

    prefill_chunk: int = 256
    micro_batches: int = 0
    max_waiting: int = 256
    prefix_cache: bool = True
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    recovery_attempts: int = 3
    recovery_seconds: float = 120.0
    open_seconds: float = 600.0
    backoff: float = 0.2
    longest_backoff: float = 5.0


class StepLoop:
    """Invariant: a sequence is in the scheduler if and only if its mailbox is here and waits for more of it.

    `ids` numbers sequences, `speculation` counts drafts, `journal` notes what happens (here: as `index`), over all
    loops that share them. `when_changed` is called whenever a pipeline was opened or lost; `observer` hears what
    happens, for those who count.
    """

    def __init__(
        self,
        opener: PipelineOpener,
        settings: StepLoopSettings | None = None,
        *,
        drafter: GuardedDrafter | None = None,
        clock: Callable[[], float] = time.monotonic,
        ids: Iterator[int] | None = None,
        speculation: SpeculationStats | None = None,
        journal: Journal | None = None,
        index: int = 0,
        when_changed: Callable[[], None] = lambda: None,
        observer: StepObserver | None = None,
    ) -> None:
        self._opener = opener
        self._settings = settings or StepLoopSettings()
        self._drafter = drafter
        self._clock = clock
        self._ids = ids if ids is not None else count()
        self._when_changed = when_changed
        self._observer = observer or StepObserver()
        self.speculation = speculation if speculation is not None else SpeculationStats()
        self._journal = journal if journal is not None else Journal()
        self._index = index
        self.generated = 0
        self._scheduler: Scheduler | None = None
        self._pipeline: Pipeline | None = None
        self._mailboxes: dict[int, Mailbox] = {}
        self._timings = TimingSums()
        self._detail = "not started"
        self._task: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    # ---- life

    async def start(self) -> None:
        """Begin to open the pipeline, and return at once; `status` says how far it got."""
        self._detail = "opening the pipeline"
        self._task = asyncio.create_task(self._keep_open(), name="step loop")

    async def wait_ready(self, timeout: float) -> None:
        """Wait until a pipeline is open. Raises PipelineUnavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._opened.wait()
        except TimeoutError:
            raise self._unavailable() from None

    async def stop(self) -> None:
        """Fail what is still running and close the pipeline."""
        await end_task(self._task)
        self._task = None
        self._detail = "stopped"
        self._fail_all("the router is stopping")

    def status(self) -> GeneratorStatus:
        """See Generator.status."""
        pipeline, scheduler = self._pipeline, self._scheduler
        load = scheduler.load if scheduler is not None else None
        return GeneratorStatus(
            ready=self.is_open,
            detail=self._detail,
            max_context=scheduler.max_context if scheduler is not None else 0,
            epoch=pipeline.facts.epoch if pipeline is not None else 0,
            running=load.running if load is not None else 0,
            waiting=load.waiting if load is not None else 0,
            kv_blocks=load.blocks if load is not None else 0,
            kv_blocks_free=load.free_blocks if load is not None else 0,
            timings=self._timings.sums(),
            steps=self._timings.steps,
        )

    # ---- requests

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """See Generator.generate."""
        return answer(lambda: self.enqueue(request))

    def enqueue(self, request: GenerationRequest) -> Mailbox:
        """Queue a request; whoever gets the mailbox reads it, or tells its home to forget it. Raises as `generate`."""
        if self._pipeline is None or self._scheduler is None:
            raise self._unavailable()
        check_request(request, self._pipeline.facts.vocab_size)
        now, length = self._clock(), len(request.prompt)
        if request.max_tokens == 0:
            mailbox = Mailbox(-1, self, self._journal.begin(request.request_id, -1, self._index, length, now))
            self._end(mailbox, (), Outcome.LENGTH)
            mailbox.put(TokenDelta((), finish=FinishReason.LENGTH))
            return mailbox
        if self._journal.traces is not None:
            request = replace(request, trace=current_trace.get())
        seq = self._scheduler.add(request)
        record = self._journal.begin(request.request_id, seq, self._index, length, now, request.trace)
        mailbox = Mailbox(seq, self, record)
        self._mailboxes[mailbox.seq] = mailbox
        self._pump()
        return mailbox

    def forget(self, mailbox: Mailbox) -> None:
        """See Home.forget."""
        if self._mailboxes.get(mailbox.seq) is mailbox and self._scheduler is not None:
            del self._mailboxes[mailbox.seq]
            self._scheduler.cancel(mailbox.seq)
            self._end(mailbox, self._timings.sums(), Outcome.LEFT)
            self._pump()

    # ---- sequences come from and go to other loops

    @property
    def is_open(self) -> bool:
        """Whether the pipeline is open: requests may come in."""
        return self._pipeline is not None

    @property
    def scheduler(self) -> Scheduler | None:
        """What runs here and waits; None before a pipeline was open. To look at, not to change."""
        return self._scheduler

    @property
    def crowded_out(self) -> tuple[int, ...]:
        """See Scheduler.crowded_out; none while the pipeline is not open."""
        return self._scheduler.crowded_out if self._pipeline is not None and self._scheduler is not None else ()

    @property
    def progress(self) -> tuple[StageProgress, ...]:
        """See Pipeline.progress; empty while the pipeline is not open."""
        return self._pipeline.progress if self._pipeline is not None else ()

    def can_seat(self, tokens: int) -> bool:
        """See Scheduler.can_seat; never while the pipeline is not open."""
        return self._pipeline is not None and self._scheduler is not None and self._scheduler.can_seat(tokens)

    @property
    def mailboxes(self) -> tuple[Mailbox, ...]:
        """Those of the sequences that are here."""
        return tuple(self._mailboxes.values())

    def hand_over(self, mailbox: Mailbox) -> Sequence:
        """Let go of a sequence that is here, for another loop to `take_over` with its mailbox."""
        assert self._scheduler is not None, "whoever has a sequence has a scheduler"
        del self._mailboxes[mailbox.seq]
        sequence = self._scheduler.hand_over(mailbox.seq)
        self._pump()
        return sequence

    def take_over(self, mailbox: Mailbox, sequence: Sequence) -> None:
        """Go on with a sequence, as if it had been here from the beginning. The pipeline must be open."""
        assert self._scheduler is not None, "an open pipeline has a scheduler"
        self._scheduler.take_over(sequence)
        self._mailboxes[mailbox.seq] = mailbox
        mailbox.home = self
        mailbox.record.go_on_at(self._index)
        if sequence.begun:
            self._observer.moved(len(sequence.tokens))
        self._pump()

    def _unavailable(self) -> PipelineUnavailable:
        return PipelineUnavailable(f"no pipeline is open: {self._detail}", self._settings.longest_backoff)

    # ---- steps

    def nudge(self) -> None:
        """The drafter has more to offer than when it was last asked: send what may be sent. On the event loop only."""
        self._pump()

    def _pump(self) -> None:
        """Send whatever may be sent. A release goes out before the step whose memory it freed."""
        pipeline, scheduler = self._pipeline, self._scheduler
        if self._alarm is not None:
            self._alarm.cancel()
        if pipeline is None or scheduler is None:
            return
        while True:
            now = self._clock()
            plan = scheduler.schedule(now)
            if released := scheduler.releases():
                pipeline.release(released)
            if plan is None:
                if scheduler.wake_at is not None:
                    self._alarm = asyncio.get_running_loop().call_later(scheduler.wake_at - self._clock(), self._pump)
                return
            pipeline.submit(Step(rows=plan.rows))
            self._observer.submitted(now)
            if plan.prefill_tokens:
                for row in plan.rows:
                    if row.start is not None:
                        self._mailboxes[row.seq].record.admit(self._clock(), self._timings.sums())

    async def _serve(self, pipeline: Pipeline, scheduler: Scheduler) -> None:
        """Take results until the pipeline is lost. The next steps leave before anything is delivered."""
        while True:
            result = await pipeline.result()
            now = self._clock()
            step = scheduler.oldest_step
            events = scheduler.update(result.outcomes, now, result.timings)
            self._pump()
            self._timings.add(result.timings)
            assert step is not None, "update refuses a result that no step waits for"
            self._observer.returned(now, step.sent, result.timings)
            if self._journal.watchers:
                seqs = tuple(row.seq.id for row in step.rows)
                self._journal.step(StepRecord(self._index, step.sent, now, step.tokens, seqs, result.timings))
            for event in events:
                self._deliver(event)

    def _deliver(self, event: SequenceEvent) -> None:
        if event.error:
            self._mailboxes.pop(event.seq).put(GrammarFailed(event.error))
            return
        mailbox = self._mailboxes[event.seq] if event.finish is None else self._mailboxes.pop(event.seq)
        mailbox.put(TokenDelta(event.tokens, event.logprobs, event.finish, event.cached_tokens))
        record = mailbox.record
        record.tokens += len(event.tokens)
        self.generated += len(event.tokens)
        if record.first is None:
            record.begin(self._clock(), self._timings.sums(), event.cached_tokens)
        if event.finish is not None:
            self._end(mailbox, self._timings.sums(), Outcome(event.finish.value))

    def _end(self, mailbox: Mailbox, sums: tuple[StageTiming, ...], outcome: Outcome) -> None:
        """An answer is over: note it, and say so where people search by request or epoch."""
        record = mailbox.record
        self._journal.end(record, self._clock(), sums, outcome)
        epoch = self._pipeline.facts.epoch if self._pipeline is not None else 0
        where = {"request_id": record.request_id, "sequence": record.seq, "pipeline": self._index, "epoch": epoch}
        counts = {"step": self._timings.steps, "prompt_tokens": record.prompt_tokens, "tokens": record.tokens}
        _log.info("answer over: %s", outcome.value, extra=where | counts | {"losses": record.losses})

    # ---- pipelines come and go

    async def _keep_open(self) -> None:
        """Open a pipeline, serve it until it is lost, and so on until stopped."""
        lost_at: float | None = None
        backoff = 0.0
        while True:
            await asyncio.sleep(backoff)
            pipeline = await self._open_next(lost_at)
            opened_at = self._clock()
            try:
                scheduler = self._adopt(pipeline)
                self._journal.opened(self._index, opened_at, pipeline.facts.epoch, pipeline.facts.stages, lost_at)
                await self._serve(pipeline, scheduler)
            except StageError as error:
                self._lost(error)
            except Exception as error:  # noqa: BLE001 - the service must outlive a defect; it is logged in full
                self._give_up_on(error)
            finally:
                self._pipeline = None
                self._opened.clear()
                self._when_changed()
                await pipeline.close()
            lost_at = self._clock()
            # At once the first time; with a pause when it breaks again as soon as it is open.
            lasted = lost_at - opened_at > self._settings.longest_backoff
            backoff = 0.0 if lasted else self._longer(backoff)

    async def _open_next(self, lost_at: float | None) -> Pipeline:
        """Try until a pipeline is open; meanwhile fail the requests that have waited as long as they may."""
        backoff = 0.0
        while True:
            if self._patience(lost_at) <= 0:
                self._fail_all(f"the pipeline was lost and did not come back: {self._detail}")
            try:
                return await self._opener.open(deadline_seconds=self._patience(lost_at), progress=self._note)
            except ShoalError as error:
                self._note(str(error))
            except Exception as error:  # noqa: BLE001 - the service must outlive a defect; it is logged in full
                _log.error("opening the pipeline met a defect", exc_info=error)
                self._note(f"internal error while opening the pipeline: {type(error).__name__}: {error}")
            backoff = self._longer(backoff)
            await asyncio.sleep(min(backoff, max(self._patience(lost_at), 0.0)))

    def _longer(self, backoff: float) -> float:
        return min(max(2 * backoff, self._settings.backoff), self._settings.longest_backoff)

    def _patience(self, lost_at: float | None) -> float:
        """Seconds that opening may take: no longer than the requests that wait for it will."""
        if lost_at is None or not self._mailboxes:
            return self._settings.open_seconds
        return lost_at + self._settings.recovery_seconds - self._clock()

    def _adopt(self, pipeline: Pipeline) -> Scheduler:
        facts, settings = pipeline.facts, self._settings
        depth = settings.micro_batches or facts.stages
        if self._scheduler is None:
            self._scheduler = Scheduler(
                facts.capacity,
                depth=depth,
                prefill_chunk=settings.prefill_chunk,
                max_waiting=settings.max_waiting,
                prefix_cache=settings.prefix_cache,
                speculator=self._speculator(facts.vocab_size),
                ids=self._ids,
            )
        else:
            for seq in self._scheduler.reset_for_epoch(facts.capacity, depth=depth):
                self._fail(seq, f"the new pipeline's context holds only {self._scheduler.max_context} tokens")
            for seq in self._mailboxes:
                if self._scheduler.has_begun(seq):
                    self._observer.resumed(len(self._scheduler.text_of(seq)))
        self._pipeline = pipeline
        self._observer.opened(facts.stages)
        self._timings = TimingSums()
        self._note(f"{facts.stages} stage{'s' if facts.stages > 1 else ''} open in epoch {facts.epoch}")
        self._opened.set()
        self._when_changed()
        self._pump()
        return self._scheduler

    def _speculator(self, vocab_size: int) -> Speculator | None:
        """None: every step takes the plain path."""
        settings = self._settings.speculation
        if self._drafter is None or settings.mode is SpeculativeMode.OFF:
            return None
        return Speculator(self._drafter, settings, vocab_size=vocab_size, stats=self.speculation)

    def _lost(self, error: StageError) -> None:
        self._detail = f"the pipeline was lost: {error}"
        epoch = self._pipeline.facts.epoch if self._pipeline is not None else 0
        _log.warning("%s", self._detail, extra={"pipeline": self._index, "epoch": epoch, "step": self._timings.steps})
        self._observer.lost(error)
        # A stage that says that it stops may do so as often as its users roll out or drain: no attempt is used up.
        counts = not isinstance(error, StageNotReady)
        self._journal.lost(self._index, self._clock(), str(error))
        for seq, mailbox in list(self._mailboxes.items()):
            begun = self._scheduler is not None and self._scheduler.has_begun(seq)
            mailbox.losses += counts and begun
            if begun:
                mailbox.record.lose_pipeline()
            if mailbox.losses > self._settings.recovery_attempts:
                self._fail(seq, f"the pipeline was lost: {error}")

    def _give_up_on(self, error: Exception) -> None:
        """A defect of ours: what the scheduler says is not to be trusted any more."""
        _log.error("the step loop met a defect: every request fails and the pipeline is opened anew", exc_info=error)
        self._note(f"internal error: {type(error).__name__}: {error}")
        self._fail_all(self._detail)
        self._scheduler = None

    def _fail_all(self, reason: str) -> None:
        for seq in list(self._mailboxes):
            self._fail(seq, reason)

    def _fail(self, seq: int, reason: str) -> None:
        mailbox = self._mailboxes.pop(seq)
        if self._scheduler is not None:
            self._scheduler.cancel(seq)
        self._observer.failed()
        self._end(mailbox, (), Outcome.FAILED)
        mailbox.put(GenerationFailed(reason))

    def _note(self, line: str) -> None:
        if line != self._detail:
            self._detail = line
            _log.info("pipeline: %s", line)
