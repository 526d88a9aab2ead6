from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    F32: _ClassVar[DType]
    F16: _ClassVar[DType]
    BF16: _ClassVar[DType]
F32: DType
F16: DType
BF16: DType

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KvCapacity(_message.Message):
    __slots__ = ("sequences", "blocks", "block_size", "max_context", "bytes", "shares_blocks")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARES_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    sequences: int
    blocks: int
    block_size: int
    max_context: int
    bytes: int
    shares_blocks: bool
    def __init__(self, sequences: _Optional[int] = ..., blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_context: _Optional[int] = ..., bytes: _Optional[int] = ..., shares_blocks: _Optional[bool] = ...) -> None: ...

class StageDescription(_message.Message):
    __slots__ = ("model_digest", "block_start", "block_end", "blocks_in_model", "state", "epoch", "engine", "device", "execution_devices", "exact", "hidden_size", "vocab_size", "max_frame_bytes", "capacity", "versions", "detail", "held", "refused")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    BLOCK_END_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_IN_MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_DEVICES_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    model_digest: str
    block_start: int
    block_end: int
    blocks_in_model: int
    state: str
    epoch: int
    engine: str
    device: str
    execution_devices: _containers.RepeatedScalarFieldContainer[str]
    exact: bool
    hidden_size: int
    vocab_size: int
    max_frame_bytes: int
    capacity: KvCapacity
    versions: _containers.ScalarMap[str, str]
    detail: str
    held: int
    refused: _containers.ScalarMap[str, int]
    def __init__(self, model_digest: _Optional[str] = ..., block_start: _Optional[int] = ..., block_end: _Optional[int] = ..., blocks_in_model: _Optional[int] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., engine: _Optional[str] = ..., device: _Optional[str] = ..., execution_devices: _Optional[_Iterable[str]] = ..., exact: _Optional[bool] = ..., hidden_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ..., capacity: _Optional[_Union[KvCapacity, _Mapping]] = ..., versions: _Optional[_Mapping[str, str]] = ..., detail: _Optional[str] = ..., held: _Optional[int] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("epoch", "stage_index", "stages", "model_digest", "block_start", "block_end", "next_address", "hidden_dtype", "max_frame_bytes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    BLOCK_END_FIELD_NUMBER: _ClassVar[int]
    NEXT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    stage_index: int
    stages: int
    model_digest: str
    block_start: int
    block_end: int
    next_address: str
    hidden_dtype: DType
    max_frame_bytes: int
    def __init__(self, epoch: _Optional[int] = ..., stage_index: _Optional[int] = ..., stages: _Optional[int] = ..., model_digest: _Optional[str] = ..., block_start: _Optional[int] = ..., block_end: _Optional[int] = ..., next_address: _Optional[str] = ..., hidden_dtype: _Optional[_Union[DType, str]] = ..., max_frame_bytes: _Optional[int] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("epoch", "number", "step", "release", "heartbeat")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    step: Step
    release: Release
    heartbeat: Heartbeat
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("rows", "hidden", "timings")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    hidden: Hidden
    timings: _containers.RepeatedCompositeFieldContainer[StageTiming]
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., hidden: _Optional[_Union[Hidden, _Mapping]] = ..., timings: _Optional[_Iterable[_Union[StageTiming, _Mapping]]] = ...) -> None: ...

class Hidden(_message.Message):
    __slots__ = ("dtype", "tokens", "width", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    tokens: int
    width: int
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., tokens: _Optional[int] = ..., width: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("seq", "version", "past_len", "tokens", "known", "sample", "slot", "blocks", "start")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAST_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    seq: int
    version: int
    past_len: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    known: int
    sample: bool
    slot: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    start: SequenceStart
    def __init__(self, seq: _Optional[int] = ..., version: _Optional[int] = ..., past_len: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., known: _Optional[int] = ..., sample: _Optional[bool] = ..., slot: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., start: _Optional[_Union[SequenceStart, _Mapping]] = ...) -> None: ...

class SequenceStart(_message.Message):
    __slots__ = ("params", "prompt_len", "history", "request_id", "trace")
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    params: SamplingParams
    prompt_len: int
    history: _containers.RepeatedScalarFieldContainer[int]
    request_id: str
    trace: str
    def __init__(self, params: _Optional[_Union[SamplingParams, _Mapping]] = ..., prompt_len: _Optional[int] = ..., history: _Optional[_Iterable[int]] = ..., request_id: _Optional[str] = ..., trace: _Optional[str] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token", "bias")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token: int
    bias: float
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "logprobs", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    seed: int
    logprobs: int
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., seed: _Optional[int] = ..., logprobs: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class StageTiming(_message.Message):
    __slots__ = ("stage", "compute_us", "queue_us", "idle_us", "send_us")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    IDLE_US_FIELD_NUMBER: _ClassVar[int]
    SEND_US_FIELD_NUMBER: _ClassVar[int]
    stage: int
    compute_us: int
    queue_us: int
    idle_us: int
    send_us: int
    def __init__(self, stage: _Optional[int] = ..., compute_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., idle_us: _Optional[int] = ..., send_us: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("seqs",)
    SEQS_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seqs: _Optional[_Iterable[int]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("frames", "progress")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    frames: int
    progress: _containers.RepeatedCompositeFieldContainer[StageProgress]
    def __init__(self, frames: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[StageProgress, _Mapping]]] = ...) -> None: ...

class StageProgress(_message.Message):
    __slots__ = ("stage", "done", "busy_ms", "draining", "refused")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    stage: int
    done: int
    busy_ms: int
    draining: bool
    refused: _containers.ScalarMap[str, int]
    def __init__(self, stage: _Optional[int] = ..., done: _Optional[int] = ..., busy_ms: _Optional[int] = ..., draining: _Optional[bool] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ResultsRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class TokenScore(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("logprob", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenScore]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenScore, _Mapping]]] = ...) -> None: ...

class RowOutcome(_message.Message):
    __slots__ = ("seq", "version", "base", "tokens", "logprobs", "error")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    seq: int
    version: int
    base: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    error: str
    def __init__(self, seq: _Optional[int] = ..., version: _Optional[int] = ..., base: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("epoch", "number", "outcomes", "timings", "heartbeat")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    outcomes: _containers.RepeatedCompositeFieldContainer[RowOutcome]
    timings: _containers.RepeatedCompositeFieldContainer[StageTiming]
    heartbeat: int
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[RowOutcome, _Mapping]]] = ..., timings: _Optional[_Iterable[_Union[StageTiming, _Mapping]]] = ..., heartbeat: _Optional[int] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("texts", "ended")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedCompositeFieldContainer[DraftText]
    ended: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, texts: _Optional[_Iterable[_Union[DraftText, _Mapping]]] = ..., ended: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftText(_message.Message):
    __slots__ = ("seq", "version", "base", "tokens", "confirmed", "ahead", "least")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    seq: int
    version: int
    base: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    confirmed: int
    ahead: int
    least: float
    def __init__(self, seq: _Optional[int] = ..., version: _Optional[int] = ..., base: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., confirmed: _Optional[int] = ..., ahead: _Optional[int] = ..., least: _Optional[float] = ...) -> None: ...

class ProposeReply(_message.Message):
    __slots__ = ("model", "proposals", "step_us")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    model: DraftModel
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    step_us: int
    def __init__(self, model: _Optional[_Union[DraftModel, _Mapping]] = ..., proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ..., step_us: _Optional[int] = ...) -> None: ...

class DraftModel(_message.Message):
    __slots__ = ("name", "model_digest", "vocab_size", "vocabulary", "max_context")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_digest: str
    vocab_size: int
    vocabulary: str
    max_context: int
    def __init__(self, name: _Optional[str] = ..., model_digest: _Optional[str] = ..., vocab_size: _Optional[int] = ..., vocabulary: _Optional[str] = ..., max_context: _Optional[int] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("seq", "version", "base", "tokens", "confidence")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    version: int
    base: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    confidence: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, seq: _Optional[int] = ..., version: _Optional[int] = ..., base: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., confidence: _Optional[_Iterable[float]] = ...) -> None: ...
