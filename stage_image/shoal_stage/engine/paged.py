"""The paged engine: SDPAToPagedAttention on this stage's graph, KV pages allocated here, all rows in one inference.

The router owns the block tables: every stage has the same number of pages, so one table serves them all. Nothing is
ever erased: a row overwrites what lies behind its `past_len`, so rollback is free and a release only ends the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from shoal.errors import ResourceError
from shoal.manifest import ModelShape
from shoal.wire.messages import KvCapacity, Row
from shoal_stage.engine.chain import Chain
from shoal_stage.engine.device import compile_for, versions
from shoal_stage.engine.interface import EngineInfo
from shoal_stage.engine.lengths import Lengths
from shoal_stage.engine.settings import BLOCK_SIZE, EngineKind, EngineSettings

_BLOCK_AXIS = 0
_CACHES = ("key_cache.", "value_cache.")


class PagedEngine:
    """See Engine. Invariant: page `b` of every layer belongs to whatever sequence the router gave block `b` to."""

    def __init__(self, chain: Chain, shape: ModelShape, settings: EngineSettings) -> None:
        self._chain = chain
        self._layers = chain.layers
        if chain.layers:
            paged_attention_transformation(chain.model)
        self._device = compile_for(chain.model, chain.layers, settings)
        compiled = self._device.compiled
        names = {port.get_any_name() for port in compiled.inputs}
        self._first = "input_ids" in names
        self._last = "logits_indices" in names
        self._request = compiled.create_infer_request()
        self._hidden_size = shape.hidden_size
        self._lengths = Lengths(trust_first=True)
        pool = self._allocate(compiled, settings.blocks)
        self.info = EngineInfo(
            engine=EngineKind.PAGED.value,
            device=settings.device.value,
            execution_devices=self._device.execution_devices,
            exact=settings.exact,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            fused_attention=self._device.fused_attention,
            versions=versions(),
        )
        self.capacity = KvCapacity(
            sequences=settings.sequences,
            blocks=settings.blocks,
            block_size=BLOCK_SIZE,
            max_context=min(settings.max_context, settings.blocks * BLOCK_SIZE),
            bytes=pool,
            shares_blocks=True,
        )

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        for row in rows:
            self._lengths.check(row)
        request = self._request
        total = sum(len(row.tokens) for row in rows)
        if self._layers:
            self._set_tables(rows, total)
        flat = (total,) if self._layers else (1, total)
        if hidden is None:
            ids = np.fromiter((token for row in rows for token in row.tokens), np.int64, total)
            request.set_tensor("input_ids", ov.Tensor(ids.reshape(flat)))
        else:
            # f32 hidden states point into the received frame, which is read-only; OpenVINO shares writable memory only.
            embeds = np.require(hidden, requirements=["C", "W"]).reshape(*flat, self._hidden_size)
            request.set_tensor("inputs_embeds", ov.Tensor(embeds, shared_memory=True))
        if self._last:
            request.set_tensor("logits_indices", ov.Tensor(_sampled(rows)))
        request.infer(share_outputs=True)
        for row in rows:
            self._lengths.advance(row)
        output: NDArray[np.float32] = request.get_output_tensor(0).data
        return output if self._last else output.reshape(total, self._hidden_size)

    def release(self, seqs: Sequence[int]) -> None:
        """See Engine.release: pages belong to the router, only the ledger ends."""
        self._lengths.release(seqs)

    def close(self) -> None:
        """See Engine.close."""
        self._request = None

    def _set_tables(self, rows: Sequence[Row], total: int) -> None:
        count = len(rows)
        past = np.empty(count, np.int32)
        begins = np.zeros(count + 1, np.int32)
        block_begins = np.zeros(count + 1, np.int32)
        positions = np.empty(total, np.int64)
        blocks: list[int] = []
        longest = at = 0
        for index, row in enumerate(rows):
            start, end = row.past_len, row.past_len + len(row.tokens)
            past[index] = start
            positions[at : at + end - start] = np.arange(start, end)
            at += end - start
            begins[index + 1] = at
            blocks += row.blocks[: -(-end // BLOCK_SIZE)]
            block_begins[index + 1] = len(blocks)
            longest = max(longest, end)
        request = self._request
        request.set_tensor("position_ids", ov.Tensor(positions))
        request.set_tensor("past_lens", ov.Tensor(past))
        request.set_tensor("subsequence_begins", ov.Tensor(begins))
        request.set_tensor("block_indices", ov.Tensor(np.array(blocks, np.int32)))
        request.set_tensor("block_indices_begins", ov.Tensor(block_begins))
        request.set_tensor("max_context_len", ov.Tensor(np.array(longest, np.int32)))

    def _allocate(self, compiled: Any, blocks: int) -> int:
        """Allocate the pages of every layer and hand them to the request; returns their bytes."""
        total = 0
        for port in compiled.inputs:
            name = port.get_any_name()
            if not name.startswith(_CACHES):
                continue
            shape = [blocks if axis == _BLOCK_AXIS else dim.get_length() for axis, dim in enumerate(port.partial_shape)]
            try:
                pages = ov.Tensor(port.element_type, ov.Shape(shape))
            except (MemoryError, RuntimeError) as error:
                raise ResourceError(f"no memory for {blocks} KV blocks ({name}): lower --kv-blocks: {error}") from error
            self._request.set_tensor(name, pages)
            total += pages.byte_size
        return total


def _sampled(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Indices of the sampled positions among all tokens of the step."""
    indices: list[int] = []
    at = 0
    for row in rows:
        sampled = row.sampled
        indices += range(at + sampled.start, at + sampled.stop) if row.sample else ()
        at += len(row.tokens)
    return np.array(indices, np.int64)
