"""The stateful engine: the paper's form. KV lives inside the compiled model's states, one InferRequest a stream slot.

All slots share one compiled model, so its weights exist once (the paper compiled the model once a stream). The row's
`slot` says which request runs it; rows of a step run one after the other.

Rollback by mask: rejected positions stay in the state and are masked for good, position ids count live tokens only.
When masked slots exceed a share of the live ones, the state is compacted through query_state and set_state, which
costs more than a step and is therefore rare; with Rewind.TRIM it happens after each rejection, to measure against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal.manifest import ModelShape
from shoal.wire.errors import InvalidFrame, StageExhausted
from shoal.wire.messages import KvCapacity, Row
from shoal_stage.engine.chain import Chain
from shoal_stage.engine.device import compile_for, versions
from shoal_stage.engine.inputs import Input, input_names
from shoal_stage.engine.interface import EngineInfo
from shoal_stage.engine.lengths import Lengths
from shoal_stage.engine.settings import BLOCK_SIZE, EngineKind, EngineSettings, Rewind

# Masked positions are attended to in vain; compacting costs about two steps. At some hundred positions on a CPU, where
# attention is half a step, an eighth balances the two.
_COMPACT_SHARE = 0.125
_COMPACT_LEAST = 64
_INPUTS: dict[str, type[np.generic]] = {
    "input_ids": np.int64,
    "inputs_embeds": np.float32,
    "position_ids": np.int64,
    "attention_mask": np.int64,
    "beam_idx": np.int32,
    "logits_indices": np.int64,
}


class _Slot:
    """One stream: its request, and which of its state's slots are live.

    Invariant: the state holds `filled` slots; `_at[:live]` are those of the live positions, rising; `_mask` is 1 there
    and 0 in the other slots below `filled`, and 1 from `filled` on (what comes next is live).
    """

    def __init__(self, request: Any, layers: int, room: int, rewind: Rewind) -> None:
        self.request = request
        self._share, self._least = (_COMPACT_SHARE, _COMPACT_LEAST) if rewind is Rewind.MASK else (0.0, 0)
        self.filled = 0
        self.live = 0
        self._layers = layers
        self._room = room
        self._mask = np.ones(room, np.int64)
        self._at = np.zeros(room, np.int64)
        self._numbers = np.arange(room, dtype=np.int64)
        self.inputs = {
            name: Input(request, name, kind)
            for name, kind in _INPUTS.items()
            if name in input_names(request.model_inputs)
        }
        if layers:
            self.inputs["beam_idx"].set(0, 1)

    def rewind(self, past_len: int) -> None:
        """Forget the positions from `past_len` on."""
        if past_len == 0:
            self.clear()
        elif past_len < self.live:
            self._mask[self._at[past_len : self.live]] = 0
            self.live = past_len

    def clear(self) -> None:
        """Forget everything."""
        if self.filled and self._layers:
            self.request.reset_state()
        self._mask[: self.filled] = 1
        self.filled = self.live = 0

    def make_room(self, tokens: int) -> None:
        """Compact when masked slots are many, or in the way."""
        masked = self.filled - self.live
        if masked > max(self._least, self._share * self.live) or self.filled + tokens > self._room:
            self._compact()
        if self.filled + tokens > self._room:
            raise StageExhausted(f"a stream slot holds {self._room} positions, {self.live + tokens} are needed")

    def feed(self, tokens: int) -> None:
        """Set mask and positions for the next `tokens` positions, and count them in."""
        start, end = self.live, self.live + tokens
        self._at[start:end] = self._numbers[self.filled : self.filled + tokens]
        self.live, self.filled = end, self.filled + tokens
        if self._layers:
            self.inputs["position_ids"].set(self._numbers[start:end], 1, tokens)
            self.inputs["attention_mask"].set(self._mask[: self.filled], 1, self.filled)

    def _compact(self) -> None:
        """Move the live slots together: read each state, drop its masked slots, write it back."""
        keep = self._at[: self.live]
        for state in self.request.query_state() if self._layers else ():
            state.state = ov.Tensor(np.ascontiguousarray(state.state.data[:, :, keep, :]))
        self._mask[: self.filled] = 1
        self._at[: self.live] = self._numbers[: self.live]
        self.filled = self.live


class StatefulEngine:
    """See Engine. Blocks are not shared between sequences: a slot is one stream."""

    def __init__(self, chain: Chain, shape: ModelShape, settings: EngineSettings) -> None:
        self._chain = chain
        self._device = compile_for(chain.model, chain.layers, settings)
        compiled = self._device.compiled
        self._last = "logits_indices" in input_names(compiled.inputs)
        room = settings.max_context + max(_COMPACT_LEAST, int(settings.max_context * _COMPACT_SHARE))
        self._slots = [
            _Slot(compiled.create_infer_request(), chain.layers, room, settings.rewind)
            for _ in range(settings.sequences)
        ]
        self._slot_of: dict[int, int] = {}
        self._lengths = Lengths(trust_first=False)
        self._hidden_size = shape.hidden_size
        self.info = EngineInfo(
            engine=EngineKind.STATEFUL.value,
            device=settings.device.value,
            execution_devices=self._device.execution_devices,
            exact=settings.exact,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            fused_attention=self._device.fused_attention,
            versions=versions(),
        )
        per_sequence = -(-settings.max_context // BLOCK_SIZE)
        self.capacity = KvCapacity(
            sequences=settings.sequences,
            blocks=settings.sequences * per_sequence,
            block_size=BLOCK_SIZE,
            max_context=settings.max_context,
            bytes=settings.sequences * room * shape.kv_bytes_per_token(chain.layers, settings.kv.bytes),
            shares_blocks=False,
        )

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        for row in rows:
            self._check(row)
        outputs: list[NDArray[np.float32]] = []
        at = 0
        for row in rows:
            end = at + len(row.tokens)
            output = self._row(row, None if hidden is None else hidden[at:end])
            if output is not None:
                # A slot's output tensor is its own, but the same slot is not run twice in a step: no copy is needed.
                outputs.append(output)
            at = end
        if len(outputs) == 1:
            return outputs[0]
        if not outputs:
            return np.empty((0, self.info.vocab_size), np.float32)
        return np.concatenate(outputs)

    def release(self, seqs: Sequence[int]) -> None:
        """See Engine.release."""
        self._lengths.release(seqs)
        for seq in seqs:
            slot = self._slot_of.pop(seq, None)
            if slot is not None:
                self._slots[slot].clear()

    def close(self) -> None:
        """See Engine.close."""
        self._slots.clear()

    def _check(self, row: Row) -> None:
        if row.slot >= len(self._slots):
            raise InvalidFrame(f"row of sequence {row.seq} names slot {row.slot} of {len(self._slots)}")
        if self._slot_of.get(row.seq, row.slot) != row.slot:
            raise InvalidFrame(f"sequence {row.seq} is in slot {self._slot_of[row.seq]}, not in slot {row.slot}")
        self._lengths.check(row)

    def _row(self, row: Row, hidden: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        slot = self._slots[row.slot]
        count = len(row.tokens)
        self._slot_of[row.seq] = row.slot
        slot.rewind(row.past_len)
        slot.make_room(count)
        slot.feed(count)
        self._lengths.advance(row)
        if hidden is None:
            slot.inputs["input_ids"].set(row.tokens, 1, count)
        else:
            slot.inputs["inputs_embeds"].set(hidden.reshape(-1), 1, count, self._hidden_size)
        if self._last:
            slot.inputs["logits_indices"].set(row.sampled, len(row.sampled))
        request = slot.request
        request.infer(share_outputs=True)
        output: NDArray[np.float32] = request.get_output_tensor(0).data
        if not self._last:
            return output.reshape(count, self._hidden_size)
        return output if row.sample else None
