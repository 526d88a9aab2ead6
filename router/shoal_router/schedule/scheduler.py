"""The scheduler: decides, step by step, which sequences run. Pure: no I/O, no clock, time is an argument.

    add / cancel                     a request comes or goes
    schedule(now) -> StepPlan        the next micro-batch, or None when nothing more may be in flight
    wake_at                          when to ask again although nothing has come meanwhile
    update(outcomes, now) -> events  the result of the oldest micro-batch in flight
    releases()                       sequences that the stages shall forget: sent before the step just scheduled
    reset_for_epoch(capacity)        the pipeline is a new one: everything is computed again, text so far is kept
    hand_over / take_over            a sequence goes on at another pipeline's scheduler, text so far is kept

**Micro-batches.** Up to `depth` steps with decode rows are in flight, at least as many as stages. A sequence is in one
of them at most, since its next token needs the last; they are spread evenly. Prompts are cut into chunks of at most
`prefill_chunk` tokens a step, decode rows first; the chunks of one prompt follow each other without waiting, so that
every stage works on another chunk, and one more step than `depth` may be in flight to keep the first stage fed. While
somebody decodes, the chunks in all steps under way are together as long as one.

**Speculation** (with a Speculator). A decode row may carry guesses, which the last stage verifies; and while fewer
steps are in flight than fill the ring, a sequence runs ahead: a further row of guesses leaves before the first is
verified. Rows that feed a committed id, the heads, always go first and exactly as they would without speculation: a
step that runs ahead counts beside the micro-batches. Guesses take at most half of a step's token budget, so that
prompts go on, and never a block that another sequence is about to need. A wrong guess costs no round trip: see
`Sequence.diverge`.

**Order.** First come, first served. The head of the queue is never overtaken. When blocks run out, the sequence that
came last gives its blocks back and is computed again later; it never takes blocks from one that came before it. So the
oldest sequence always proceeds, and with it everything. A sequence with rows in flight is never preempted, and none
runs ahead while a head waits: so rows in flight come to an end.

**Memory** goes back when no row of the sequence is in flight. With one FIFO through all stages an earlier return could
not do harm, since a new owner's rows run after the old ones; it is a guard for links that can reorder or replay.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from itertools import count

from shoal.wire.messages import KvCapacity, RowOutcome, StageTiming
from shoal_router.generation import ContextLengthExceeded, FinishReason, GenerationRequest
from shoal_router.schedule.batch import Batch, SentRow, SentStep
from shoal_router.schedule.memory import KvMemory
from shoal_router.schedule.plan import Load, OutcomeMismatch, SequenceEvent, StepPlan
from shoal_router.schedule.queue import WaitingQueue
from shoal_router.schedule.sequence import Guess, Sequence, SequenceState
from shoal_router.schedule.speculation import Speculator


class Scheduler:
    """Invariant: every sequence that is not over is in exactly one place: waiting, prefilling, ready to decode, or
    in flight with the row whose token it waits for. `check_integrity` says so in full.
    """

    def __init__(
        self,
        capacity: KvCapacity,
        *,
        depth: int,
        prefill_chunk: int = 256,
        max_waiting: int = 256,
        prefix_cache: bool = True,
        speculator: Speculator | None = None,
        ids: Iterator[int] | None = None,
    ) -> None:
        """`ids` numbers the sequences in the order of arrival; schedulers that hand over to each other share one."""
        if depth < 1 or prefill_chunk < 1 or max_waiting < 0:
            raise ValueError(f"depth {depth}, prefill_chunk {prefill_chunk} or max_waiting {max_waiting} is too small")
        self._prefill_chunk = prefill_chunk
        self._prefix_cache = prefix_cache
        self._speculator = speculator
        self._ids = ids if ids is not None else count()
        self._sequences: dict[int, Sequence] = {}
        self._waiting = WaitingQueue(max_waiting)
        self._start_over(capacity, depth)

    def _start_over(self, capacity: KvCapacity, depth: int) -> None:
        self._depth = depth
        self._memory = KvMemory(capacity, prefix_cache=self._prefix_cache)
        self._running: dict[int, Sequence] = {}
        self._prefilling: deque[Sequence] = deque()
        self._ready: deque[Sequence] = deque()
        self._in_flight: deque[SentStep] = deque()
        self._decoding_steps = 0
        self._steps_ahead = 0
        self._last_sent = (float("-inf"), 1)
        self.wake_at: float | None = None
        if self._speculator is not None:
            self._speculator.start_over(depth)

    @property
    def max_context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._memory.max_context

    @property
    def load(self) -> Load:
        """How much there is to do."""
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            slots=self._memory.slots,
            in_flight=len(self._in_flight),
            blocks=self._memory.blocks.count,
            free_blocks=self._memory.blocks.available,
        )

    @property
    def oldest_step(self) -> SentStep | None:
        """The step whose result is due next. To look at, not to change."""
        return self._in_flight[0] if self._in_flight else None

    @property
    def backlog(self) -> int:
        """Ids that must be computed before everybody who is here decodes."""
        return sum(seq.remaining for seq in self._prefilling) + sum(len(seq.tokens) for seq in self._waiting)

    def cached(self, tokens: SequenceOf[int]) -> int:
        """How many of these ids the prefix cache holds."""
        return self._memory.cached(tokens)

    # ---- requests come and go

    def add(self, request: GenerationRequest) -> int:
        """Queue a request; returns the sequence's id. Raises ContextLengthExceeded or QueueFull."""
        prompt_len = len(request.prompt)
        if not prompt_len or (request.max_tokens is not None and request.max_tokens < 1):
            raise ValueError("a request has a prompt and asks for at least one token")
        if prompt_len >= self.max_context:
            raise ContextLengthExceeded(prompt_len, self.max_context)
        self._waiting.check_room(self._memory.slots, self._memory.free_slots)
        seq = Sequence(
            id=next(self._ids),
            prompt_len=prompt_len,
            tokens=list(request.prompt),
            params=request.params,
            limit=min(prompt_len + (request.max_tokens or self.max_context), self.max_context),
            stop_token_ids=request.stop_token_ids,
            group=request.group,
            request_id=request.request_id,
            trace=request.trace,
        )
        self._sequences[seq.id] = seq
        self._waiting.put(seq)
        return seq.id

    def cancel(self, seq_id: int) -> None:
        """End a sequence from outside. Unknown ids are ignored: it may have ended by itself in the same moment."""
        seq = self._sequences.get(seq_id)
        if seq is not None and seq.state is not SequenceState.OVER:
            self._end(seq)

    def has_begun(self, seq_id: int) -> bool:
        """Whether the stages hold, or held, something of the sequence."""
        seq = self._sequences.get(seq_id)
        return seq is not None and seq.begun

    def releases(self) -> tuple[int, ...]:
        """Sequences whose memory was given back since the last call. Send them before the step just scheduled."""
        return self._memory.releases()

    # ---- to and from other pipelines

    @property
    def crowded_out(self) -> tuple[int, ...]:
        """Sequences that wait for memory, in their order; none while the first of them only waits for its step."""
        head = self._waiting.head
        if head is None or self._memory.has_room(len(head.tokens), headroom=len(self._running)):
            return ()
        return tuple(seq.id for seq in self._waiting)

    def can_seat(self, tokens: int) -> bool:
        """Whether there is memory for a sequence of that many ids, and nobody before it who waits."""
        return not len(self._waiting) and self._memory.has_room(tokens, headroom=len(self._running))

    def limit_of(self, seq_id: int) -> int:
        """Ids that the sequence may have in the end, its prompt included."""
        return self._sequences[seq_id].limit

    def text_of(self, seq_id: int) -> SequenceOf[int]:
        """The sequence's ids so far, its prompt included."""
        return self._sequences[seq_id].tokens

    def hand_over(self, seq_id: int) -> Sequence:
        """Take out a sequence that is not over, with what was drawn of it. Rows in flight come back for nothing."""
        seq = self._sequences[seq_id]
        moved = seq.moved()
        self._remove(seq)
        if self._speculator is not None:
            self._speculator.leave(seq)
        return moved

    def take_over(self, seq: Sequence) -> None:
        """Go on with a sequence that another scheduler handed over: it waits in its place by arrival.

        Nobody is refused for want of room in the queue: the sequence was accepted before. Raises ContextLengthExceeded
        when it could not come to its own end here.
        """
        if seq.limit > self.max_context:
            raise ContextLengthExceeded(seq.limit, self.max_context)
        assert seq.id not in self._sequences, f"sequence {seq.id} has not left yet"
        self._sequences[seq.id] = seq
        self._waiting.put(seq)
        if seq.begun and self._speculator is not None:
            self._speculator.join(seq)

    # ---- steps go out

    def schedule(self, now: float) -> StepPlan | None:
        """The next micro-batch; None when nothing can run, enough is in flight, or it pays to wait (`wake_at`)."""
        self.wake_at = None
        batch = Batch(with_tables=self._memory.shares)
        decode_rows = prefill_tokens = 0
        if len(self._in_flight) - self._steps_ahead <= self._depth:
            self._add_decode_rows(batch, now)
            decode_rows = len(batch.rows)
            prefill_tokens = self._add_prefill_rows(batch, self._prefill_budget(batch), now)
        ahead = not batch.rows and self._add_row_ahead(batch, now)
        if not batch.rows:
            return None
        due = self._speculator.due(now, batch.tokens) if self._speculator is not None else now
        for sent in batch.sent:
            sent.seq.due, sent.seq.held = due, None
        self._last_sent = now, batch.tokens
        self._in_flight.append(SentStep(batch.sent, decode_rows > 0, ahead, not prefill_tokens, batch.tokens, now))
        self._decoding_steps += decode_rows > 0
        self._steps_ahead += ahead
        return StepPlan(tuple(batch.rows), decode_rows, prefill_tokens)

    def _add_decode_rows(self, batch: Batch, now: float) -> None:
        free_steps = self._depth - self._decoding_steps
        if free_steps <= 0 or not self._ready:
            return
        # An even share of what is ready over the steps that may still leave; and never more than an even share of
        # all that decode, so that a lopsided split (after some sequences ended) levels out.
        decoding = len(self._running) - len(self._prefilling)
        share = min(-(-len(self._ready) // free_steps), -(-decoding // self._depth))
        heads: list[Sequence] = []
        stay: list[Sequence] = []
        while self._ready and len(heads) < share:
            seq = self._ready.popleft()
            waits = self._waits(seq, decoding, now) or not self._make_room(seq, spared=heads)
            (stay if waits else heads).append(seq)
        self._ready.extendleft(seq for seq in reversed(stay) if seq.state is SequenceState.RUNNING)
        drafts: SequenceOf[tuple[Guess, ...]] = [()] * len(heads)
        if self._speculator is not None:
            prompts = self._depth if self._prefilling or len(self._waiting) else 1
            budget = max(self._prefill_chunk // prompts - len(heads), 0) // 2
            drafts = self._speculator.widen(heads, steps=self._decoding_steps + 1, budget=budget, users=decoding)
        for seq, draft in zip(heads, drafts, strict=True):
            batch.add(seq, seq.remaining, self._fitting(seq, draft))

    def _waits(self, seq: Sequence, users: int, now: float) -> bool:
        """Whether the row had better wait for a draft that is being made."""
        until = self._speculator.hold(seq, users=users, now=now) if self._speculator is not None else None
        if until is not None:
            self._wake(until)
        return until is not None

    def _wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(at, self.wake_at)

    def _add_row_ahead(self, batch: Batch, now: float) -> bool:
        """A row of guesses behind rows that are still under way, when nothing better can be sent."""
        speculator = self._speculator
        if speculator is None or self._ready:
            return False
        steps, users = len(self._in_flight) + 1, len(self._running) - len(self._prefilling)
        if max(steps, users + 1) > speculator.credits:  # with as many users as the ring takes, rows are only widened
            return False
        room_at = speculator.room_at(*self._last_sent)
        if now < room_at:
            self._wake(room_at)
            return False
        candidates = [seq for seq in self._running.values() if seq.awaited and seq.room > 0]
        chosen = speculator.ahead(candidates, steps=steps, budget=self._prefill_chunk, users=users, now=now)
        if chosen is not None:
            seq, draft = chosen
            if draft := self._fitting(seq, draft):
                batch.add(seq, 0, draft)
        return bool(batch.rows)

    def _fitting(self, seq: Sequence, draft: tuple[Guess, ...]) -> tuple[Guess, ...]:
        """As many of the guesses as have blocks, leaving one for each running sequence lest its head must wait."""
        if not draft or self._speculator is None:
            return ()
        start = seq.num_computed + max(seq.remaining, 0)
        draft = draft[: self._memory.stretch(seq, start + len(draft), reserve=len(self._running)) - start]
        self._speculator.count_sent(draft)
        return draft

    def _prefill_budget(self, batch: Batch) -> int:
        """Prompt tokens that the step may take: a chunk, and while somebody decodes that step's share of one.

        A token goes round behind the chunks that left before it. With a whole one in each stage and one waiting, it
        would take as long as `depth + 1` of them; with shares, no longer than one.
        """
        if len(self._running) == len(self._prefilling):
            return max(self._prefill_chunk - batch.tokens, 1)
        if len(self._in_flight) - self._steps_ahead >= self._depth:
            return 0
        return max(self._prefill_chunk // self._depth - batch.tokens, 1)

    def _add_prefill_rows(self, batch: Batch, budget: int, now: float) -> int:
        taken = 0
        while taken < budget:
            seq = self._prefilling[0] if self._prefilling else self._admit(now)
            if seq is None:
                break
            length = min(budget - taken, seq.remaining)
            batch.add(seq, length)
            taken += length
            if not seq.remaining:
                self._prefilling.popleft()
        return taken

    # ---- memory comes and goes

    def _admit(self, now: float) -> Sequence | None:
        """Seat the head of the queue, leaving a block for each running sequence lest it is preempted at once."""
        seq = self._waiting.head
        if seq is None or not self._memory.seat(seq, headroom=len(self._running)):
            return None
        self._waiting.remove(seq)
        seq.state = SequenceState.RUNNING
        if not seq.begun:
            seq.begun, seq.admitted = True, now
            seq.cached_tokens = seq.num_computed
            if self._speculator is not None:
                self._speculator.begin(seq)
        self._running[seq.id] = seq
        self._prefilling.append(seq)
        return seq

    def _make_room(self, seq: Sequence, *, spared: SequenceOf[Sequence]) -> bool:
        """Blocks for all committed ids of `seq`, taken from later sequences if need be, but not from the `spared`."""
        while not self._memory.grow(seq):
            later = (other for other in self._running.values() if other.id > seq.id)
            idle = (other for other in later if not other.in_flight and other not in spared)
            victim = max(idle, key=lambda other: other.id, default=None)
            if victim is None:
                return False
            self._leave(victim)
            self._memory.give_back(victim)
            victim.state = SequenceState.WAITING
            self._waiting.put(victim)
        return True

    def _leave(self, seq: Sequence) -> None:
        """Take a running sequence out of the lists of what can run."""
        del self._running[seq.id]
        for queue in (self._ready, self._prefilling):
            if seq in queue:
                queue.remove(seq)

    def _end(self, seq: Sequence) -> None:
        self._remove(seq)
        if self._speculator is not None:
            self._speculator.end(seq)

    def _remove(self, seq: Sequence) -> None:
        if seq.state is SequenceState.WAITING:
            self._waiting.remove(seq)
            del self._sequences[seq.id]
        else:
            self._leave(seq)
            if not seq.in_flight:
                self._forget(seq)
        seq.state = SequenceState.OVER

    def _forget(self, seq: Sequence) -> None:
        self._memory.give_back(seq)
        del self._sequences[seq.id]

    # ---- results come back

    def update(
        self, outcomes: SequenceOf[RowOutcome], now: float, timings: SequenceOf[StageTiming] = ()
    ) -> list[SequenceEvent]:
        """Take the result of the oldest step in flight, and how long its stages took.

        Raises OutcomeMismatch when it does not answer that step; then no token of it was committed.
        """
        if not self._in_flight:
            raise OutcomeMismatch("a result came back although no step is in flight")
        drawn = {outcome.seq: outcome for outcome in outcomes}
        for sent in self._in_flight[0].rows:
            sent.check(drawn.get(sent.seq.id))
        step = self._in_flight.popleft()
        self._decoding_steps -= step.decodes
        self._steps_ahead -= step.ahead
        if self._speculator is not None and step.measures:
            self._speculator.observe(step.tokens, len(step.rows), timings, now - step.sent)
        events = []
        for sent in step.rows:
            seq = sent.seq
            seq.in_flight -= 1
            if sent.is_live:
                if sent.sample:
                    events.append(self._commit(sent, drawn[seq.id], now))
                else:
                    self._memory.acknowledge(seq, sent.end)
            else:
                if self._speculator is not None:
                    self._speculator.count_stale()
                if seq.state is SequenceState.OVER and not seq.in_flight:
                    self._forget(seq)
        return events

    def _commit(self, sent: SentRow, outcome: RowOutcome, now: float) -> SequenceEvent:
        """Append what was drawn, and settle the guesses that it answers."""
        seq = sent.seq
        seq.awaited -= 1
        if outcome.error:
            self._end(seq)
            return SequenceEvent(seq.id, (), error=outcome.error)
        finish: FinishReason | None = None
        hit = True
        for token in outcome.tokens:
            # Only the last one can be an end: no guess is one, and the others were guessed.
            finish = seq.commit(token)
            if seq.guesses:
                guess = seq.guesses.popleft()
                hit = guess.token == token
                if self._speculator is not None:
                    self._speculator.learn(seq, guess, hit)
        if self._speculator is not None:
            self._speculator.commit(seq, outcome.tokens)
        # What was fed behind the last committed id but one may be a guess that was wrong.
        self._memory.acknowledge(seq, min(sent.end, len(seq.tokens) - 1))
        if finish is not None:
            self._waiting.learn(now - seq.admitted)
            self._end(seq)
        else:
            if not hit:
                seq.diverge()
            if not seq.awaited:
                self._ready.append(seq)
        return SequenceEvent(seq.id, outcome.tokens, outcome.logprobs, finish, seq.cached_tokens)

    # ---- a new pipeline

    def reset_for_epoch(self, capacity: KvCapacity, *, depth: int) -> list[int]:
        """Start over on a new pipeline: nothing is in flight, nothing computed, every sequence waits in its place.

        What was drawn so far is kept and computed again like a prompt (replay). Returns the sequences that do not
        fit the new capacity; they are gone.
        """
        alive = [seq for seq in self._sequences.values() if seq.state is not SequenceState.OVER]
        self._start_over(capacity, depth)
        self._sequences = {seq.id: seq for seq in alive if len(seq.tokens) < self.max_context}
        self._waiting.refill(self._sequences.values())
        for seq in self._waiting:
            seq.state = SequenceState.WAITING
            seq.in_flight = 0
            seq.blocks.clear()
            seq.block_keys.clear()  # the new stages may have blocks of another size
            seq.forget_computed()
            seq.limit = min(seq.limit, self.max_context)
        gone = [seq for seq in alive if seq.id not in self._sequences]
        if self._speculator is not None:
            for seq in gone:
                self._speculator.end(seq)
        return [seq.id for seq in gone]

    def check_integrity(self) -> None:
        """Compare every ledger with every other; raises AssertionError with what is wrong."""
        seated = [seq for seq in self._sequences.values() if seq.state is not SequenceState.WAITING]
        self._memory.check_integrity(seated)
        assert [seq.id for seq in self._waiting] == sorted(seq.id for seq in self._waiting), "the queue lost its order"
        assert self._decoding_steps == sum(step.decodes for step in self._in_flight)
        assert self._steps_ahead == sum(step.ahead for step in self._in_flight)
        assert self._decoding_steps <= self._depth, "too many micro-batches are in flight"
        assert len(self._in_flight) - self._steps_ahead <= self._depth + 1, "too many steps are in flight"
        rows = Counter(sent.seq.id for step in self._in_flight for sent in step.rows)
        awaited = Counter(sent.seq.id for step in self._in_flight for sent in step.rows if sent.sample and sent.is_live)
        for seq in self._sequences.values():
            seq.check_integrity()
            assert seq.in_flight == rows[seq.id], f"sequence {seq.id}: {rows[seq.id]} rows are in flight"
            if seq.state is SequenceState.RUNNING:
                assert seq.awaited == awaited[seq.id], f"sequence {seq.id}: {awaited[seq.id]} rows are awaited"
            places = [
                seq in self._waiting,
                seq in self._prefilling,
                seq in self._ready,
                seq.state is SequenceState.RUNNING and awaited[seq.id] > 0,
                seq.state is SequenceState.OVER and seq.in_flight > 0,
            ]
            assert sum(places) == 1, f"sequence {seq.id} is in {sum(places)} places"
            assert (seq.id in self._running) == (seq.state is SequenceState.RUNNING)
