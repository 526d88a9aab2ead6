"""Exact mode's last step: the same bits for a token however its row was cut, batched or drafted.

F32 arithmetic alone does not give that. On the CPU kernels are chosen by how many tokens come together, and round
differently (3e-5 in a logit, enough to change a sampled text once in a long while):

- attention, and products with quantised weights, of one token, against those of several: so a token that is decoded
  would differ from the same token in a prompt, in a replay after a loss, or as a draft that is verified;
- products of many tokens, from somewhere between 64 and 99 on, against those of fewer.

So a lone token is fed twice, the copy's result dropped, and an inference never has more than PIECE tokens. A lone
position whose logits are asked for is asked for twice, too, by the engine itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.wire.messages import KvCapacity, Row
from shoal_stage.engine.interface import EngineInfo
from shoal_stage.engine.paged import PagedEngine

PIECE: Final = 32
"""Most tokens of one inference, copies included."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens from `start` on of row number `number`, as they are fed: `row` holds a lone token twice."""

    row: Row
    number: int
    start: int
    tokens: int

    @property
    def fed(self) -> int:
        return len(self.row.tokens)


class SameBits:
    """See Engine. The page behind the wrapped engine's blocks takes the copies that fall behind a row's last page."""

    def __init__(self, engine: PagedEngine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        """See Engine.info."""
        return self._engine.info

    @property
    def capacity(self) -> KvCapacity:
        """See Engine.capacity."""
        return self._engine.capacity

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        begins = list(accumulate((len(row.tokens) for row in rows), initial=0))
        outputs = []
        for piece in _pieces([part for number, row in enumerate(rows) for part in self._parts(number, row)]):
            chosen = None
            if hidden is not None:
                chosen = hidden[[begins[part.number] + part.start + index % part.tokens for part, index in _fed(piece)]]
            out = self._engine.run([part.row for part in piece], chosen)
            outputs.append(out[_asked_for(piece, logits=self._engine.gives_logits)])
        return np.concatenate(outputs)

    def _parts(self, number: int, row: Row) -> Iterator[_Part]:
        """The row in parts of at most PIECE tokens, a lone one doubled."""
        size = self.capacity.block_size
        for start in range(0, len(row.tokens), PIECE):
            tokens = row.tokens[start : start + PIECE]
            past_len = row.past_len + start
            blocks = row.blocks[: -(-(past_len + len(tokens)) // size)]
            if len(tokens) == 1 and (past_len + 1) % size == 0:
                blocks = (*blocks, self.capacity.blocks)
            part = replace(
                row,
                past_len=past_len,
                tokens=tokens * 2 if len(tokens) == 1 else tokens,
                known=min(max(row.known - start, 0), len(tokens)),
                sample=row.sample and row.known - 1 < start + len(tokens),
                blocks=blocks,
                start=row.start if start == 0 else None,
            )
            yield _Part(part, number, start, len(tokens))

    def release(self, seqs: Sequence[int]) -> None:
        """See Engine.release."""
        self._engine.release(seqs)

    def close(self) -> None:
        """See Engine.close."""
        self._engine.close()


def _pieces(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """The parts in order, as many in each inference as fit."""
    piece: list[_Part] = []
    for part in parts:
        if sum(each.fed for each in piece) + part.fed > PIECE:
            yield piece
            piece = []
        piece.append(part)
    yield piece


def _fed(piece: Sequence[_Part]) -> Iterator[tuple[_Part, int]]:
    """Each part with the index of each token that it feeds."""
    return ((part, index) for part in piece for index in range(part.fed))


def _asked_for(piece: Sequence[_Part], *, logits: bool) -> list[int]:
    """Which of the outputs stand for tokens that were asked for, and not for copies."""
    outputs = ((part, index) for part in piece for index in (part.row.sampled if logits else range(part.fed)))
    return [number for number, (part, index) in enumerate(outputs) if index < part.tokens]
