"""Protobuf <-> dataclass, in both directions, for every message of the Stage service (the Draft service's: drafts.py).

Decoding checks what must hold for a message to mean anything (a body is present, a tensor's bytes fit its shape, a row
feeds at least one id and knows no more than it feeds) and raises InvalidFrame otherwise. What depends on the
receiver's state (epoch, order, vocabulary, slots) is the receiver's to check.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from shoal.wire import stage_pb2 as pb
from shoal.wire.errors import InvalidFrame
from shoal.wire.messages import (
    DType,
    Frame,
    Heartbeat,
    KvCapacity,
    OpenReply,
    OpenRequest,
    Release,
    Row,
    RowOutcome,
    SamplingParams,
    SequenceStart,
    StageDescription,
    StageProgress,
    StageState,
    StageTiming,
    Step,
    StepResult,
    TokenLogprob,
)

_NUMPY_TYPES: dict[int, np.dtype[np.generic]] = {
    DType.F32: np.dtype("<f4"),
    DType.F16: np.dtype("<f2"),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
}


def encode_frame(frame: Frame, dtype: DType = DType.F32) -> pb.Frame:
    """The frame as protobuf; `dtype` is how its hidden states are sent."""
    body = frame.body
    if isinstance(body, Step):
        return pb.Frame(epoch=frame.epoch, number=frame.number, step=_encode_step(body, dtype))
    if isinstance(body, Release):
        return pb.Frame(epoch=frame.epoch, number=frame.number, release=pb.Release(seqs=body.seqs))
    return pb.Frame(epoch=frame.epoch, number=frame.number, heartbeat=pb.Heartbeat(nonce=body.nonce))


def decode_frame(message: pb.Frame) -> Frame:
    """The frame as dataclasses. Raises InvalidFrame when the message cannot mean anything."""
    body: Step | Release | Heartbeat
    match message.WhichOneof("body"):
        case "step":
            body = _decode_step(message.step)
        case "release":
            body = Release(seqs=tuple(message.release.seqs))
        case "heartbeat":
            body = Heartbeat(nonce=message.heartbeat.nonce)
        case _:
            raise InvalidFrame(f"frame {message.number} has no body that this version knows")
    return Frame(epoch=message.epoch, number=message.number, body=body)


def forward_step(message: pb.Frame, hidden: NDArray[np.float32], dtype: DType, timing: StageTiming) -> pb.Frame:
    """A step's frame for the next hop: the rows as they came, the new hidden states, one more timing.

    Changes `message` itself: rows are neither taken apart nor built anew, which would be most of a hop's work.
    """
    message.step.hidden.CopyFrom(_encode_hidden(hidden, dtype))
    message.step.timings.append(_encode_timing(timing))
    return message


def encode_result(result: StepResult) -> pb.StepResult:
    """The last stage's answer as protobuf."""
    return pb.StepResult(
        epoch=result.epoch,
        number=result.number,
        outcomes=[_encode_outcome(outcome) for outcome in result.outcomes],
        timings=[_encode_timing(timing) for timing in result.timings],
        heartbeat=result.heartbeat,
    )


def decode_result(message: pb.StepResult) -> StepResult:
    """The last stage's answer as dataclasses. Raises InvalidFrame when logprobs and ids differ in number."""
    return StepResult(
        epoch=message.epoch,
        number=message.number,
        outcomes=tuple(_decode_outcome(outcome) for outcome in message.outcomes),
        timings=tuple(_decode_timing(timing) for timing in message.timings),
        heartbeat=message.heartbeat if message.HasField("heartbeat") else None,
    )


def encode_description(description: StageDescription) -> pb.StageDescription:
    """What a stage says of itself, as protobuf."""
    capacity = description.capacity
    return pb.StageDescription(
        model_digest=description.model_digest,
        block_start=description.block_start,
        block_end=description.block_end,
        blocks_in_model=description.blocks_in_model,
        state=description.state.value,
        epoch=description.epoch,
        engine=description.engine,
        device=description.device,
        execution_devices=description.execution_devices,
        exact=description.exact,
        hidden_size=description.hidden_size,
        vocab_size=description.vocab_size,
        max_frame_bytes=description.max_frame_bytes,
        capacity=None
        if capacity is None
        else pb.KvCapacity(
            sequences=capacity.sequences,
            blocks=capacity.blocks,
            block_size=capacity.block_size,
            max_context=capacity.max_context,
            bytes=capacity.bytes,
            shares_blocks=capacity.shares_blocks,
        ),
        versions=description.versions,
        detail=description.detail,
        held=description.held,
        refused=description.refused,
    )


def decode_description(message: pb.StageDescription) -> StageDescription:
    """What a stage says of itself, as dataclasses. Raises InvalidFrame for a state this version does not know."""
    try:
        state = StageState(message.state)
    except ValueError:
        raise InvalidFrame(f"stage reports the unknown state {message.state!r}: update the router") from None
    capacity = message.capacity
    return StageDescription(
        model_digest=message.model_digest,
        block_start=message.block_start,
        block_end=message.block_end,
        blocks_in_model=message.blocks_in_model,
        state=state,
        epoch=message.epoch,
        engine=message.engine,
        device=message.device,
        execution_devices=tuple(message.execution_devices),
        exact=message.exact,
        hidden_size=message.hidden_size,
        vocab_size=message.vocab_size,
        max_frame_bytes=message.max_frame_bytes,
        capacity=KvCapacity(
            sequences=capacity.sequences,
            blocks=capacity.blocks,
            block_size=capacity.block_size,
            max_context=capacity.max_context,
            bytes=capacity.bytes,
            shares_blocks=capacity.shares_blocks,
        )
        if message.HasField("capacity")
        else None,
        versions=dict(message.versions),
        detail=message.detail,
        held=message.held,
        refused=dict(message.refused),
    )


def encode_credit(frames: int, progress: tuple[StageProgress, ...]) -> pb.Credit:
    """`frames` more may be sent; and a pulse, as protobuf."""
    return pb.Credit(
        frames=frames,
        progress=[
            pb.StageProgress(
                stage=each.stage,
                done=each.done,
                busy_ms=each.busy_ms,
                draining=each.draining,
                refused=each.refused,
            )
            for each in progress
        ],
    )


def decode_progress(message: pb.Credit) -> tuple[StageProgress, ...]:
    """What a pulse says, nearest stage first; empty before the stage serves an epoch on this stream."""
    return tuple(
        StageProgress(each.stage, each.done, each.busy_ms, each.draining, dict(each.refused))
        for each in message.progress
    )


def encode_open(request: OpenRequest) -> pb.OpenRequest:
    """The call that gives a stage its place, as protobuf."""
    return pb.OpenRequest(
        epoch=request.epoch,
        stage_index=request.stage_index,
        stages=request.stages,
        model_digest=request.model_digest,
        block_start=request.block_start,
        block_end=request.block_end,
        next_address=request.next_address,
        hidden_dtype=_PB_DTYPES[request.hidden_dtype],
        max_frame_bytes=request.max_frame_bytes,
    )


def decode_open(message: pb.OpenRequest) -> OpenRequest:
    """The call that gives a stage its place, as dataclasses. Raises InvalidFrame for an unknown dtype."""
    return OpenRequest(
        epoch=message.epoch,
        stage_index=message.stage_index,
        stages=message.stages,
        model_digest=message.model_digest,
        block_start=message.block_start,
        block_end=message.block_end,
        next_address=message.next_address,
        hidden_dtype=_dtype(message.hidden_dtype),
        max_frame_bytes=message.max_frame_bytes,
    )


def encode_open_reply(reply: OpenReply) -> pb.OpenReply:
    """The stage's answer to Open, as protobuf."""
    return pb.OpenReply(epoch=reply.epoch)


def decode_open_reply(message: pb.OpenReply) -> OpenReply:
    """The stage's answer to Open, as a dataclass."""
    return OpenReply(epoch=message.epoch)


_PB_DTYPES: dict[DType, pb.DType] = {DType.F32: pb.F32, DType.F16: pb.F16, DType.BF16: pb.BF16}


def _dtype(value: int) -> DType:
    try:
        return DType(value)
    except ValueError:
        raise InvalidFrame(f"hidden states have the unknown dtype {value}: the stages' versions differ") from None


def _encode_step(step: Step, dtype: DType) -> pb.Step:
    return pb.Step(
        rows=[_encode_row(row) for row in step.rows],
        hidden=None if step.hidden is None else _encode_hidden(step.hidden, dtype),
        timings=[_encode_timing(timing) for timing in step.timings],
    )


def _decode_step(message: pb.Step) -> Step:
    rows = tuple(_decode_row(row) for row in message.rows)
    if not rows:
        raise InvalidFrame("a step needs at least one row")
    hidden = _decode_hidden(message.hidden) if message.HasField("hidden") else None
    fed = sum(len(row.tokens) for row in rows)
    if hidden is not None and hidden.shape[0] != fed:
        raise InvalidFrame(f"rows feed {fed} tokens, hidden states came for {hidden.shape[0]}")
    return Step(rows=rows, hidden=hidden, timings=tuple(_decode_timing(timing) for timing in message.timings))


def _encode_hidden(hidden: NDArray[np.float32], dtype: DType) -> pb.Hidden:
    tokens, width = hidden.shape
    data = hidden.astype(_NUMPY_TYPES[dtype], copy=False).tobytes()
    return pb.Hidden(dtype=_PB_DTYPES[dtype], tokens=tokens, width=width, data=data)


def _decode_hidden(message: pb.Hidden) -> NDArray[np.float32]:
    kind = _NUMPY_TYPES[_dtype(message.dtype)]
    expected = message.tokens * message.width * kind.itemsize
    if len(message.data) != expected:
        raise InvalidFrame(
            f"hidden states of shape [{message.tokens}, {message.width}] need {expected} bytes, got {len(message.data)}"
        )
    flat = np.frombuffer(message.data, dtype=kind)
    return flat.astype(np.float32, copy=False).reshape(message.tokens, message.width)


def _encode_row(row: Row) -> pb.Row:
    return pb.Row(
        seq=row.seq,
        version=row.version,
        past_len=row.past_len,
        tokens=row.tokens,
        known=row.known,
        sample=row.sample,
        slot=row.slot,
        blocks=row.blocks,
        start=None if row.start is None else _encode_start(row.start),
    )


def _decode_row(message: pb.Row) -> Row:
    tokens = tuple(message.tokens)
    if not tokens:
        raise InvalidFrame(f"row of sequence {message.seq} feeds no token")
    if message.known > len(tokens):
        raise InvalidFrame(f"row of sequence {message.seq} knows {message.known} of {len(tokens)} tokens")
    return Row(
        seq=message.seq,
        version=message.version,
        past_len=message.past_len,
        tokens=tokens,
        known=message.known,
        sample=message.sample,
        slot=message.slot,
        blocks=tuple(message.blocks),
        start=_decode_start(message.start) if message.HasField("start") else None,
    )


def _encode_start(start: SequenceStart) -> pb.SequenceStart:
    params = start.params
    return pb.SequenceStart(
        params=pb.SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=[pb.LogitBias(token=token, bias=bias) for token, bias in params.logit_bias],
            seed=params.seed,
            logprobs=params.logprobs,
            grammar=params.grammar,
        ),
        prompt_len=start.prompt_len,
        history=start.history,
        request_id=start.request_id,
        trace=start.trace,
    )


def _decode_start(message: pb.SequenceStart) -> SequenceStart:
    params = message.params
    return SequenceStart(
        params=SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=tuple((bias.token, bias.bias) for bias in params.logit_bias),
            seed=params.seed,
            logprobs=params.logprobs if params.HasField("logprobs") else None,
            grammar=params.grammar,
        ),
        prompt_len=message.prompt_len,
        history=tuple(message.history),
        request_id=message.request_id,
        trace=message.trace,
    )


def _encode_timing(timing: StageTiming) -> pb.StageTiming:
    return pb.StageTiming(
        stage=timing.stage,
        compute_us=timing.compute_us,
        queue_us=timing.queue_us,
        idle_us=timing.idle_us,
        send_us=timing.send_us,
    )


def _decode_timing(message: pb.StageTiming) -> StageTiming:
    return StageTiming(
        stage=message.stage,
        compute_us=message.compute_us,
        queue_us=message.queue_us,
        idle_us=message.idle_us,
        send_us=message.send_us,
    )


def _encode_outcome(outcome: RowOutcome) -> pb.RowOutcome:
    return pb.RowOutcome(
        seq=outcome.seq,
        version=outcome.version,
        base=outcome.base,
        tokens=outcome.tokens,
        logprobs=[
            pb.TokenLogprob(
                logprob=entry.logprob,
                top=[pb.TokenScore(token=token, logprob=logprob) for token, logprob in entry.top],
            )
            for entry in outcome.logprobs
        ],
        error=outcome.error,
    )


def _decode_outcome(message: pb.RowOutcome) -> RowOutcome:
    if message.logprobs and len(message.logprobs) != len(message.tokens):
        raise InvalidFrame(f"{len(message.tokens)} tokens came with {len(message.logprobs)} logprobs")
    return RowOutcome(
        seq=message.seq,
        version=message.version,
        base=message.base,
        tokens=tuple(message.tokens),
        logprobs=tuple(
            TokenLogprob(
                logprob=entry.logprob,
                top=tuple((score.token, score.logprob) for score in entry.top),
            )
            for entry in message.logprobs
        ),
        error=message.error,
    )
