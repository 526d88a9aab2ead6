"""A stage's part of a request's trace: one span from the sequence's first row here to its release.

The compute thread's own. Of a sequence whose first row brought no context nothing is kept, so that without traces a
step costs one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.tracing import Attributes, Traces
from shoal.wire.messages import Row


@dataclass(slots=True)
class _Open:
    context: str
    epoch: int
    began: float
    last: float
    steps: int = 0
    tokens: int = 0
    compute: float = 0.0


class StageSpans:
    """Invariant: `_open` holds the traced sequences that have a row behind them and are not over."""

    def __init__(self, traces: Traces | None, blocks: str, device: str) -> None:
        self._traces = traces
        self._blocks = blocks
        self._device = device
        self._open: dict[int, _Open] = {}

    def ran(self, rows: Iterable[Row], *, epoch: int, started: float, ended: float) -> None:
        """A step was computed. `compute` counts the whole step for each of its rows: they share it."""
        if self._traces is None:
            return
        for row in rows:
            if row.start is not None and row.start.trace:
                self._open[row.seq] = _Open(row.start.trace, epoch, started, started)
            if self._open and (known := self._open.get(row.seq)) is not None:
                known.last = ended
                known.steps += 1
                known.tokens += len(row.tokens)
                known.compute += ended - started

    def over(self, seqs: Iterable[int], *, stage: int) -> None:
        """The sequences are released: their spans are made."""
        if self._traces is None or not self._open:
            return
        for seq in seqs:
            if (known := self._open.pop(seq, None)) is not None:
                facts: Attributes = {
                    "shoal.stage": stage,
                    "shoal.epoch": known.epoch,
                    "shoal.blocks": self._blocks,
                    "shoal.device": self._device,
                    "shoal.steps": known.steps,
                    "shoal.tokens": known.tokens,
                    "shoal.compute_ms": round(known.compute * 1e3, 3),
                }
                self._traces.record(f"stage {stage}", known.context, known.began, known.last, facts)
