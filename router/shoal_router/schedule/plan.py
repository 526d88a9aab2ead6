"""What the scheduler hands out: the steps to run, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import StageError
from shoal.wire.messages import Row, TokenLogprob
from shoal_router.generation import FinishReason


class OutcomeMismatch(StageError):
    """A result does not fit the step that it answers: the pipeline and the scheduler have come apart."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One micro-batch. The scheduler counts it as in flight from the moment it hands it out."""

    rows: tuple[Row, ...]
    decode_rows: int
    prefill_tokens: int


@dataclass(frozen=True, slots=True)
class SequenceEvent:
    """New tokens of a sequence; `finish` on its last event. `cached_tokens` of its prompt were not computed.

    With `error` there are none, and never will be: the last stage says why.
    """

    seq: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    cached_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """How much the scheduler has to do, in sequences and KV blocks. `slots`: most sequences that run at a time."""

    running: int
    waiting: int
    slots: int
    in_flight: int
    blocks: int
    free_blocks: int
