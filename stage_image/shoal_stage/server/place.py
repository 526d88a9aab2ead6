"""A stage's place in one epoch: what may come next, and what is refused. Pure; owned by the event loop's thread.

Every frame is checked here before anything uses it: a refused frame changes nothing, neither the ledger nor the KV.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.wire.errors import DigestMismatch, InvalidFrame, StageExhausted, StaleEpoch, WrongPlace
from shoal.wire.messages import (
    LARGEST_ADDED,
    LARGEST_GRAMMAR,
    REPETITION_PENALTIES,
    Frame,
    KvCapacity,
    OpenRequest,
    Release,
    Row,
    Step,
)


@dataclass(frozen=True, slots=True)
class Held:
    """What the stage holds: the facts that a request or a frame is compared with."""

    model_digest: str
    block_start: int
    block_end: int
    blocks_in_model: int
    hidden_size: int
    vocab_size: int
    max_frame_bytes: int
    capacity: KvCapacity

    @property
    def first(self) -> bool:
        """Token ids come in, not hidden states."""
        return self.block_start == 0

    @property
    def last(self) -> bool:
        """Tokens are drawn here."""
        return self.block_end == self.blocks_in_model


def check_open(request: OpenRequest, held: Held, epoch: int) -> None:
    """Refuse an Open that means another model, another place or an epoch that is over."""
    if request.epoch <= epoch:
        raise StaleEpoch(f"epoch {request.epoch} is over: this stage already serves epoch {epoch}")
    if request.model_digest != held.model_digest:
        raise DigestMismatch(
            f"the pipeline serves model {request.model_digest[:12]}…, this stage holds {held.model_digest[:12]}…: "
            "start it with the pipeline's model directory"
        )
    if (request.block_start, request.block_end) != (held.block_start, held.block_end):
        raise WrongPlace(
            f"the plan gives this stage blocks {request.block_start}:{request.block_end}, "
            f"it holds {held.block_start}:{held.block_end}"
        )
    index, stages = request.stage_index, request.stages
    if not 0 <= index < stages:
        raise WrongPlace(f"stage index {index} is not inside a pipeline of {stages} stages")
    if held.first != (index == 0) or held.last != (index == stages - 1):
        raise WrongPlace(f"blocks {held.block_start}:{held.block_end} cannot be stage {index + 1} of {stages}")
    if held.last == bool(request.next_address):
        raise WrongPlace(
            "the last stage has no next hop" if held.last else "a stage before the last needs its next hop's address"
        )
    if request.max_frame_bytes > held.max_frame_bytes:
        raise WrongPlace(
            f"the router means to send frames of up to {request.max_frame_bytes} bytes, this stage takes at most "
            f"{held.max_frame_bytes}: lower scheduler.prefillChunk or raise --max-frame-bytes"
        )


@dataclass(slots=True)
class _Sequence:
    length: int
    version: int
    slot: int


class Place:
    """Invariant: `_sequences` holds what the accepted frames add up to, before the compute thread gets to them."""

    def __init__(self, epoch: int, held: Held) -> None:
        self.epoch = epoch
        self._held = held
        self._expected = 0
        self._sequences: dict[int, _Sequence] = {}
        self._slots: dict[int, int] = {}

    @property
    def live(self) -> tuple[int, ...]:
        """The sequences that hold memory once all accepted frames are done."""
        return tuple(self._sequences)

    def accept(self, frame: Frame) -> None:
        """Check the frame and note what it does. Raises StaleEpoch, InvalidFrame or StageExhausted."""
        if frame.epoch < self.epoch:
            raise StaleEpoch(f"frame {frame.number} belongs to epoch {frame.epoch}, this stage serves {self.epoch}")
        if frame.epoch > self.epoch:
            raise WrongPlace(f"frame {frame.number} belongs to epoch {frame.epoch}, which was not opened here")
        if frame.number != self._expected:
            raise InvalidFrame(f"frame {frame.number} is out of order: frame {self._expected} is due")
        body = frame.body
        if isinstance(body, Step):
            self._check_step(body)
            for row in body.rows:
                self._note(row)
        elif isinstance(body, Release):
            self._forget(body.seqs)
        self._expected += 1

    def _check_step(self, step: Step) -> None:
        held = self._held
        if held.first and step.hidden is not None:
            raise InvalidFrame("the first stage takes token ids, not hidden states")
        if not held.first and (step.hidden is None or step.hidden.shape[1] != held.hidden_size):
            found = "none" if step.hidden is None else f"width {step.hidden.shape[1]}"
            raise InvalidFrame(f"hidden states of width {held.hidden_size} are due, {found} came")
        seqs = {row.seq for row in step.rows}
        if len(seqs) != len(step.rows):
            raise InvalidFrame("a sequence has two rows in one step")
        slots: dict[int, int] = {}
        for row in step.rows:
            self._check_row(row)
            if not held.capacity.shares_blocks and slots.setdefault(row.slot, row.seq) != row.seq:
                raise InvalidFrame(f"slot {row.slot} is given to two sequences in one step")
        fresh = sum(row.seq not in self._sequences for row in step.rows)
        if len(self._sequences) + fresh > held.capacity.sequences:
            raise StageExhausted(
                f"{len(self._sequences)} sequences are held and {fresh} more came: "
                f"this stage holds {held.capacity.sequences}"
            )

    def _check_row(self, row: Row) -> None:
        capacity, name = self._held.capacity, f"row of sequence {row.seq}"
        known = self._sequences.get(row.seq)
        end = row.past_len + len(row.tokens)
        if end > capacity.max_context:
            raise InvalidFrame(f"{name} ends at position {end}, this stage holds {capacity.max_context} a sequence")
        if max(row.tokens) >= self._held.vocab_size:
            raise InvalidFrame(f"{name} feeds id {max(row.tokens)}, the vocabulary has {self._held.vocab_size}")
        if known is None:
            if row.start is None:
                raise InvalidFrame(f"{name} is its first, but brings no sampling parameters")
            self._check_start(row)
        else:
            if row.start is not None:
                raise InvalidFrame(f"{name} starts a sequence that is already held: release it first")
            if row.version < known.version:
                raise InvalidFrame(f"{name} has version {row.version} after version {known.version}")
            if row.past_len > known.length:
                raise InvalidFrame(
                    f"{name} starts at position {row.past_len}, but only {known.length} are held: a gap would stay"
                )
        if capacity.shares_blocks:
            self._check_blocks(row, end)
        else:
            self._check_slot(row, known)

    def _check_start(self, row: Row) -> None:
        start = row.start
        if start is None:
            return
        params = start.params
        if not self._held.capacity.shares_blocks and row.past_len:
            raise InvalidFrame(f"first row of sequence {row.seq} starts at {row.past_len}: stream slots share nothing")
        if len(start.history) not in (0, row.past_len):
            raise InvalidFrame(
                f"sequence {row.seq} has {len(start.history)} ids of history for {row.past_len} positions"
            )
        ids = (*start.history, *(token for token, _ in params.logit_bias))
        if ids and max(ids) >= self._held.vocab_size:
            raise InvalidFrame(f"sequence {row.seq} names id {max(ids)}, the vocabulary has {self._held.vocab_size}")
        # Logits that are no numbers end the stage, not only this epoch: what could make them so is refused here.
        added = (params.presence_penalty, params.frequency_penalty, *(bias for _, bias in params.logit_bias))
        bounded = all(abs(value) <= LARGEST_ADDED for value in added)
        if not (bounded and params.temperature >= 0 and 0 < params.top_p <= 1 and 0 <= params.min_p <= 1):
            raise InvalidFrame(f"sequence {row.seq} has sampling parameters out of range: {params}")
        if (size := len(params.grammar.encode())) > LARGEST_GRAMMAR:
            raise InvalidFrame(f"sequence {row.seq} has a grammar of {size} bytes: up to {LARGEST_GRAMMAR} are taken")
        least, most = REPETITION_PENALTIES
        if not least <= params.repetition_penalty <= most:
            raise InvalidFrame(
                f"sequence {row.seq} has repetition_penalty {params.repetition_penalty}: {least:g} to {most:g} is due"
            )

    def _check_blocks(self, row: Row, end: int) -> None:
        capacity = self._held.capacity
        needed = -(-end // capacity.block_size)
        if len(row.blocks) < needed:
            raise InvalidFrame(
                f"row of sequence {row.seq} reaches position {end} and needs {needed} KV blocks, {len(row.blocks)} came"
            )
        if max(row.blocks) >= capacity.blocks:
            raise InvalidFrame(f"row of sequence {row.seq} names KV block {max(row.blocks)} of {capacity.blocks}")

    def _check_slot(self, row: Row, known: _Sequence | None) -> None:
        capacity = self._held.capacity
        if row.slot >= capacity.sequences:
            raise InvalidFrame(f"row of sequence {row.seq} names slot {row.slot} of {capacity.sequences}")
        if known is not None and known.slot != row.slot:
            raise InvalidFrame(f"sequence {row.seq} is in slot {known.slot}, its row names slot {row.slot}")
        owner = self._slots.get(row.slot, row.seq)
        if owner != row.seq:
            raise InvalidFrame(f"slot {row.slot} holds sequence {owner}: release it before sequence {row.seq} starts")

    def _note(self, row: Row) -> None:
        self._sequences[row.seq] = _Sequence(row.past_len + len(row.tokens), row.version, row.slot)
        if not self._held.capacity.shares_blocks:
            self._slots[row.slot] = row.seq

    def _forget(self, seqs: tuple[int, ...]) -> None:
        for seq in seqs:
            held = self._sequences.pop(seq, None)
            if held is not None:
                self._slots.pop(held.slot, None)
