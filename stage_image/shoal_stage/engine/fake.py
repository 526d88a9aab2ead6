"""A stage without OpenVINO: integer arithmetic that is as touchy as attention, for tests of servers and routers.

Each layer keeps one 64-bit word a position (its "KV") and mixes ALL words of the sequence into the next one. So a
wrong token, position, order, block table, slot or rollback changes every later token, as it would in a real model,
and the same prompt gives the same text for every split into stages, batch, chunking and speculation setting.
Hidden states carry the word as eight floats of eight bits, which f32, f16 and bf16 all hold exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.manifest import Block, BlockKind, FileEntry, Manifest, ModelShape, Precision
from shoal.wire.errors import InvalidFrame
from shoal.wire.messages import KvCapacity, Row
from shoal_stage.engine.interface import EngineInfo
from shoal_stage.engine.lengths import Lengths

Words = NDArray[np.uint64]

HIDDEN_SIZE = 8
_SHIFTS = np.arange(0, 64, 8, dtype=np.uint64)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(words: Words) -> Words:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): every bit of the input reaches every bit out."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class FakeEngine:
    """Blocks [start, end) of a model with `layers` layers; `paged` reads Row.blocks, otherwise Row.slot.

    `on_run` is called on the compute thread before each step with its rows: a test's place to block or to fail.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        layers: int = 4,
        vocab_size: int = 256,
        paged: bool = True,
        sequences: int = 16,
        blocks: int = 128,
        block_size: int = 16,
        max_context: int = 512,
        on_run: Callable[[Sequence[Row]], None] | None = None,
    ) -> None:
        if not 0 <= start < end <= layers + 2:
            raise ValueError(f"blocks [{start}, {end}) are not part of a model with {layers + 2} blocks")
        self._first, self._last = start == 0, end == layers + 2
        self._layers = range(max(start, 1), min(end, layers + 1))
        self._vocab_size, self._paged, self._block_size = vocab_size, paged, block_size
        per_slot = -(-max_context // block_size)
        pages = blocks if paged else sequences * per_slot
        self._per_slot = per_slot
        self._pool = np.zeros((len(self._layers), pages, block_size), np.uint64)
        self._lengths = Lengths(trust_first=paged)
        self._on_run = on_run
        self.closed = False
        self.steps = 0
        self.info = EngineInfo(
            engine="fake",
            device="CPU",
            execution_devices=("CPU",),
            exact=True,
            hidden_size=HIDDEN_SIZE,
            vocab_size=vocab_size,
            fused_attention=len(self._layers),
            versions={"fake": "1"},
        )
        self.capacity = KvCapacity(
            sequences=sequences,
            blocks=pages,
            block_size=block_size,
            max_context=max_context,
            bytes=self._pool.nbytes,
            shares_blocks=paged,
        )

    @property
    def live(self) -> frozenset[int]:
        """The sequences that hold memory: empty after every one was released."""
        return self._lengths.live

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        if self._on_run is not None:
            self._on_run(rows)
        for row in rows:
            self._lengths.check(row)
        if self._first == (hidden is not None):
            raise InvalidFrame("hidden states belong to every stage but the first")
        words = self._embed(rows) if hidden is None else _unpack(hidden)
        at, out = 0, np.empty_like(words)
        for row in rows:
            span = slice(at, at + len(row.tokens))
            out[span] = self._row(row, words[span])
            self._lengths.advance(row)
            at = span.stop
        self.steps += 1
        if not self._last:
            return _pack(out)
        sampled, at = [], 0
        for row in rows:
            sampled += [at + index for index in row.sampled]
            at += len(row.tokens)
        return self._logits(out[sampled])

    def release(self, seqs: Sequence[int]) -> None:
        """See Engine.release."""
        self._lengths.release(seqs)

    def close(self) -> None:
        """See Engine.close."""
        self.closed = True

    def _embed(self, rows: Sequence[Row]) -> Words:
        ids = np.array([token for row in rows for token in row.tokens], np.uint64)
        return _mix(ids + _GOLDEN)

    def _row(self, row: Row, words: Words) -> Words:
        end = row.past_len + len(row.tokens)
        own = np.arange(self._per_slot) + row.slot * self._per_slot
        table = np.array(row.blocks, np.intp) if self._paged else own
        positions = np.arange(end)
        pages, offsets = table[positions // self._block_size], positions % self._block_size
        weights = _mix(positions.astype(np.uint64)) | np.uint64(1)
        for index, layer in enumerate(self._layers):
            self._pool[index, pages[row.past_len :], offsets[row.past_len :]] = words
            seen = np.cumsum(self._pool[index, pages, offsets] * weights, dtype=np.uint64)
            words = _mix(seen[row.past_len :] ^ np.uint64(layer * int(_GOLDEN) % (1 << 64)))
        return words

    def _logits(self, words: Words) -> NDArray[np.float32]:
        vocab = _mix(words[:, None] ^ _mix(np.arange(self._vocab_size, dtype=np.uint64))[None, :])
        return ((vocab >> np.uint64(40)).astype(np.float32) / np.float32(1 << 22)).astype(np.float32)


def _pack(words: Words) -> NDArray[np.float32]:
    return ((words[:, None] >> _SHIFTS) & np.uint64(255)).astype(np.float32)


def _unpack(hidden: NDArray[np.float32]) -> Words:
    return np.asarray(np.sum(hidden.astype(np.uint64) << _SHIFTS, axis=1, dtype=np.uint64))


def greedy_text(prompt: Sequence[int], count: int, *, layers: int = 4, vocab_size: int = 256) -> list[int]:
    """What plain greedy decoding of the fake model gives: the oracle of the tests, one whole pass a token."""
    ids = list(prompt)
    for _ in range(count):
        engine = FakeEngine(0, layers + 2, layers=layers, vocab_size=vocab_size, paged=False, max_context=len(ids))
        row = Row(seq=0, version=0, past_len=0, tokens=tuple(ids), known=len(ids), sample=True)
        ids.append(int(np.argmax(engine.run((row,), None)[-1])))
    return ids[len(prompt) :]


def fake_manifest(*, layers: int = 4, vocab_size: int = 256, max_context: int = 512, name: str = "fake") -> Manifest:
    """A manifest of the fake model: for the digest and the shape; its files do not exist."""
    names = ["embed", *(f"layer-{index:03d}" for index in range(layers)), "head"]
    kinds = [BlockKind.EMBED, *[BlockKind.LAYER] * layers, BlockKind.HEAD]
    nothing = "0" * 64
    blocks = tuple(
        Block(
            name=block,
            kind=kind,
            xml=FileEntry(path=f"blocks/{block}.xml", bytes=0, sha256=nothing),
            bin=FileEntry(path=f"blocks/{block}.bin", bytes=0, sha256=nothing),
            weight_bytes=0,
        )
        for block, kind in zip(names, kinds, strict=True)
    )
    shape = ModelShape(
        family="fake",
        layers=layers,
        hidden_size=HIDDEN_SIZE,
        heads=1,
        kv_heads=1,
        head_size=HIDDEN_SIZE,
        vocab_size=vocab_size,
        max_context=max_context,
    )
    return Manifest(
        name=name,
        source_sha256=nothing,
        precision=Precision.F32,
        shape=shape,
        tied_embeddings=True,
        blocks=blocks,
    )
