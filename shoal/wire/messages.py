"""The messages of the pipeline as plain dataclasses: what engines, schedulers and fakes speak.

The protobuf form stands in stage.proto; `shoal.wire.codec` is the only place that converts. A micro-batch of
rows goes router -> stage 0 -> … -> last stage as a `Step`; only ids, logprobs and counts return (`StepResult`).

Positions are absolute: a sequence's token `i` has position `i`, prompt first. A row feeds `tokens` at positions
`past_len … past_len + len(tokens) - 1`. Rolling back needs no message of its own: the next row of the sequence
simply has a smaller `past_len`, and every stage forgets what lay behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray


class DType(IntEnum):
    """Element type of hidden states on the wire."""

    F32 = 0
    F16 = 1
    BF16 = 2


LARGEST_ADDED: Final = 1e6
"""What a penalty or a bias may add to a logit, either way: beyond any use, and far from where f32 ends."""

LARGEST_GRAMMAR: Final = 64 * 1024
"""Bytes of a grammar: it goes over every hop with its sequence's first row."""

REPETITION_PENALTIES: Final = (1e-3, 1e3)
"""Least and largest: logits are divided by it, and must stay f32 numbers."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the last stage draws a sequence's tokens. Defaults change nothing and draw at temperature 1.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. Presence and frequency penalties count
    generated tokens only (OpenAI); `repetition_penalty` counts prompt and generated tokens (CTRL, Keskar 2019).
    `seed` is always set: the router draws one when the client gave none, so that a replay repeats the text.
    `logprobs` is None (off) or the number of alternatives to report beside the chosen token. `grammar` (llguidance's)
    says which answers there may be, "" that there may be any; the last stage masks the logits by it (shoal/grammar).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """What a stage must know of a sequence before its first row in an epoch.

    `prompt_len` tells prompt from answer. `history` holds the ids at positions [0, past_len) of that first row:
    empty unless a prefix was reused, and needed by penalties and grammars only. `trace`: the context of the request's
    span, as the header `traceparent` has it; "" when it is not traced. `request_id`: of the client's request, for logs.
    Both go with the first row only.
    """

    params: SamplingParams
    prompt_len: int
    history: tuple[int, ...] = ()
    request_id: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part of a step.

    The first `known` ids of `tokens` are committed, the rest are drafts. With `sample` the last stage draws the
    successor of each position from `known - 1` on (from 0 when nothing is known: the row runs ahead) and stops
    at the first draft that differs from what it drew: 1 … n_draft + 1 ids return. Without `sample` nothing
    returns but the acknowledgement: a prompt's chunk that is not its last.

    `slot` is the stream slot (stateful engine); `blocks` the KV block table (paged engine), long enough for
    `past_len + len(tokens)` positions. Both are chosen by the router and are the same on every stage.
    """

    seq: int
    version: int
    past_len: int
    tokens: tuple[int, ...]
    known: int
    sample: bool
    slot: int = 0
    blocks: tuple[int, ...] = ()
    start: SequenceStart | None = None

    @property
    def n_draft(self) -> int:
        """How many of the row's ids are drafts."""
        return len(self.tokens) - self.known

    @property
    def sampled(self) -> range:
        """Indices into `tokens` whose successor is drawn by the last stage."""
        return range(max(self.known - 1, 0), len(self.tokens)) if self.sample else range(0)


@dataclass(frozen=True, slots=True)
class StageTiming:
    """Where one stage's time went for one step, in microseconds.

    `compute_us`: the forward pass (and sampling). `queue_us`: the frame lay waiting for the compute thread.
    `idle_us`: the compute thread lay waiting for this frame. `send_us`: giving the previous frame to the next hop.
    """

    stage: int
    compute_us: int
    queue_us: int = 0
    idle_us: int = 0
    send_us: int = 0


def outside_stages(timings: Sequence[StageTiming], latency: float) -> float:
    """Seconds of a step's round trip in which no stage had it: the hops. No clocks need to agree for it."""
    return max(latency - sum(timing.compute_us + timing.queue_us for timing in timings) * 1e-6, 0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass of one micro-batch. `hidden` is None on the first hop, else [sum of row lengths, hidden]."""

    rows: tuple[Row, ...]
    hidden: NDArray[np.float32] | None = None
    timings: tuple[StageTiming, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """The sequences are over: free their slots and forget their sampling state."""

    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Goes round the ring like a step, so that its return proves that every stage's compute thread lives."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Frame:
    """What crosses a hop. `number` counts a link's frames from 0 in each epoch: a gap or a repeat is refused."""

    epoch: int
    number: int
    body: Step | Release | Heartbeat


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of the chosen id, and of the most likely ids beside it, highest first.

    Taken from the distribution after penalties, logit bias and grammar, and before temperature and truncation: ids that
    the grammar forbids have no part in it.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What the last stage drew for one row.

    `tokens[i]` stands at position `base + i`. `logprobs` is empty or as long as `tokens`. With `error` nothing was
    drawn: the sequence's grammar cannot be followed any further, and the sequence, but no other, is over.
    """

    seq: int
    version: int
    base: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The last stage's answer to one frame, in the order of the frames. Exactly one for each step and heartbeat."""

    epoch: int
    number: int
    outcomes: tuple[RowOutcome, ...] = ()
    timings: tuple[StageTiming, ...] = ()
    heartbeat: int | None = None


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """The KV memory of one stage, as its engine allocated it.

    `sequences`: how many may be held at once. `blocks` x `block_size` tokens is the pool; every stage of a
    pipeline is run with the smallest of its stages' pools, so one block table serves them all.
    `shares_blocks`: two sequences may point at the same block (prefix cache); false for stream slots.
    """

    sequences: int
    blocks: int
    block_size: int
    max_context: int
    bytes: int
    shares_blocks: bool


class StageState(StrEnum):
    """What a stage is doing. Only a READY stage is SERVING in grpc.health.v1."""

    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class StageDescription:
    """What a stage says of itself (Describe).

    `held`: sequences that hold KV memory. `refused`: frames, calls and peers that it refused since it started, by
    reason (wire/refused): a replayed or reordered frame is an InvalidFrame, one of an epoch that is over a StaleEpoch.
    """

    model_digest: str
    block_start: int
    block_end: int
    blocks_in_model: int
    state: StageState
    epoch: int
    engine: str
    device: str
    execution_devices: tuple[str, ...]
    exact: bool
    hidden_size: int
    vocab_size: int
    max_frame_bytes: int
    capacity: KvCapacity | None = None
    versions: dict[str, str] = field(default_factory=dict)
    detail: str = ""
    held: int = 0
    refused: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far a stage has got in its epoch; part of its pulse.

    `done`: frames that it has computed, which is the number of the next one. `busy_ms`: how long the step in hand has
    been running, 0 between steps. `draining`: it was told to stop, and serves on until the router has moved. `refused`:
    as in StageDescription.
    """

    stage: int
    done: int
    busy_ms: int = 0
    draining: bool = False
    refused: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Router -> stage: take your place in a pipeline. Closes every older epoch.

    `next_address` is empty for the last stage. `hidden_dtype` is what this stage sends to the next.
    `max_frame_bytes` is the largest frame the router will cause on this hop (one full prefill chunk).
    """

    epoch: int
    stage_index: int
    stages: int
    model_digest: str
    block_start: int
    block_end: int
    next_address: str
    hidden_dtype: DType
    max_frame_bytes: int


@dataclass(frozen=True, slots=True)
class OpenReply:
    """The stage took its place: the epoch it now serves. How much may be sent, the first Credit of Run says."""

    epoch: int
