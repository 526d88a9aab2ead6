"""The paged engine: SDPAToPagedAttention on this stage's graph, KV pages allocated here, all rows in one inference.

The router owns the block tables: every stage has the same number of pages, so one table serves them all. Nothing is
ever erased: a row overwrites what lies behind its `past_len`, so rollback is free and a release only ends the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from shoal.errors import ResourceError
from shoal.manifest import ModelShape
from shoal.plan.document import Device
from shoal.wire.messages import KvCapacity, Row
from shoal_stage.engine.chain import Chain
from shoal_stage.engine.device import compile_for, versions
from shoal_stage.engine.inputs import Input, input_names
from shoal_stage.engine.interface import EngineInfo
from shoal_stage.engine.lengths import Lengths
from shoal_stage.engine.settings import BLOCK_SIZE, EngineKind, EngineSettings

_BLOCK_AXIS, _TOKEN_AXIS = 0, 2
_VALUE_CACHE = "value_cache."
_CACHES = ("key_cache.", _VALUE_CACHE)
_INPUTS: dict[str, type[np.generic]] = {
    "input_ids": np.int64,
    "inputs_embeds": np.float32,
    "position_ids": np.int64,
    "logits_indices": np.int64,
    "past_lens": np.int32,
    "subsequence_begins": np.int32,
    "block_indices": np.int32,
    "block_indices_begins": np.int32,
    "max_context_len": np.int32,
}


class PagedEngine:
    """See Engine. Invariant: page `b` of every layer belongs to whatever sequence the router gave block `b` to."""

    def __init__(self, chain: Chain, shape: ModelShape, settings: EngineSettings, spare_pages: int = 0) -> None:
        """`spare_pages` lie behind the capacity's blocks: for who wraps the engine, not for the router."""
        self._chain = chain
        self._layers = chain.layers
        if chain.layers:
            paged_attention_transformation(chain.model)
            _restore_width(chain.model, shape.hidden_size)
        # On the CPU a cached blob of a paged graph cannot be loaded again (2026.4.1: it lacks the rt_info that the
        # plugin's PagedAttention asks for): every start would compile all the same, and write the blob once more.
        cached = replace(settings, cache_dir=None) if settings.device is Device.CPU else settings
        self._device = compile_for(chain.model, chain.layers, cached)
        compiled = self._device.compiled
        self._request = compiled.create_infer_request()
        self._inputs = {
            name: Input(self._request, name, kind)
            for name, kind in _INPUTS.items()
            if name in input_names(compiled.inputs)
        }
        self.gives_logits = "logits_indices" in self._inputs
        self._hidden_size = shape.hidden_size
        self._lengths = Lengths(trust_first=True)
        self._block_size = page_tokens(compiled.inputs)
        blocks = settings.blocks(self._block_size)
        pool = self._allocate(compiled, blocks + spare_pages)
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
            blocks=blocks,
            block_size=self._block_size,
            max_context=min(settings.max_context, blocks * self._block_size),
            bytes=pool,
            shares_blocks=True,
        )

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        for row in rows:
            self._lengths.check(row)
        inputs = self._inputs
        total = sum(len(row.tokens) for row in rows)
        # The paged graph takes tokens flat; a stage without layers keeps the batch dimension of its blocks.
        leading = () if self._layers else (1,)
        if self._layers:
            self._set_tables(rows, total)
        if hidden is None:
            ids = [token for row in rows for token in row.tokens] if len(rows) > 1 else rows[0].tokens
            inputs["input_ids"].set(ids, *leading, total)
        else:
            inputs["inputs_embeds"].set(hidden.reshape(-1), *leading, total, self._hidden_size)
        count = 0
        if self.gives_logits:
            sampled = _sampled(rows)
            count = len(sampled)
            if count == 1 and self.info.exact:
                sampled *= 2  # see same_bits: the head's product, too, has another kernel for one row
            inputs["logits_indices"].set(sampled, len(sampled))
        request = self._request
        request.infer(share_outputs=True)
        for row in rows:
            self._lengths.advance(row)
        output: NDArray[np.float32] = request.get_output_tensor(0).data
        return output[:count] if self.gives_logits else output.reshape(total, self._hidden_size)

    def release(self, seqs: Sequence[int]) -> None:
        """See Engine.release: pages belong to the router, only the ledger ends."""
        self._lengths.release(seqs)

    def close(self) -> None:
        """See Engine.close."""
        self._request = None

    def _set_tables(self, rows: Sequence[Row], total: int) -> None:
        past: list[int] = []
        begins = [0]
        block_begins = [0]
        positions: list[int] = []
        blocks: list[int] = []
        longest = 0
        size = self._block_size
        for row in rows:
            start, end = row.past_len, row.past_len + len(row.tokens)
            past.append(start)
            positions += range(start, end)
            begins.append(len(positions))
            blocks += row.blocks[: -(-end // size)]
            block_begins.append(len(blocks))
            longest = max(longest, end)
        inputs = self._inputs
        inputs["position_ids"].set(positions, total)
        inputs["past_lens"].set(past, len(rows))
        inputs["subsequence_begins"].set(begins, len(rows) + 1)
        inputs["block_indices"].set(blocks, len(blocks))
        inputs["block_indices_begins"].set(block_begins, len(rows) + 1)
        inputs["max_context_len"].set(longest)

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


def page_tokens(ports: Iterable[Any]) -> int:
    """Tokens of a KV page, which each device chooses: the third dimension of its values [pages, heads, tokens, size].

    A table made for pages of another size would read what was never written there, without any error.
    """
    for port in ports:
        if port.get_any_name().startswith(_VALUE_CACHE):
            return int(port.partial_shape[_TOKEN_AXIS].get_length())
    return BLOCK_SIZE


def _restore_width(model: ov.Model, hidden_size: int) -> None:
    """Give a later stage's input its width back, which the transformation makes dynamic.

    Without it the first layer's RMSNorm is not fused and rounds differently from the same layer in another split.
    """
    for parameter in model.get_parameters():
        if parameter.get_friendly_name() == "inputs_embeds":
            parameter.set_partial_shape(ov.PartialShape([-1, hidden_size]))
    model.validate_nodes_and_infer_types()


def _sampled(rows: Sequence[Row]) -> list[int]:
    """Indices of the sampled positions among all tokens of the step."""
    indices: list[int] = []
    at = 0
    for row in rows:
        if row.sample:
            sampled = row.sampled
            indices += range(at + sampled.start, at + sampled.stop)
        at += len(row.tokens)
    return indices
