"""The seam between the OpenAI API and the step loop: token ids in, token ids out.

The API turns text into ids and ids into text (text/); the step loop behind this seam knows ids only. A caller that
stops iterating, or closes the iterator, cancels the generation: every stage then frees what the sequence held.

    GenerationError
    ├── ContextLengthExceeded     prompt and answer do not fit the model's context     400 context_length_exceeded
    ├── QueueFull                 too many requests wait already                       429 with Retry-After
    ├── PipelineUnavailable       no pipeline is open right now                        503 with Retry-After
    ├── GrammarFailed             the answer cannot follow its grammar to the end      400 grammar_too_complex
    └── GenerationFailed          the pipeline was lost in mid-answer                  500, or an error event
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from shoal.errors import ShoalError
from shoal.wire.messages import SamplingParams, StageTiming, TokenLogprob


class GenerationError(ShoalError):
    """A request cannot be served, or not to its end."""


class ContextLengthExceeded(GenerationError):
    """Prompt and answer do not fit the context."""

    def __init__(self, prompt_tokens: int, max_context: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, but the model's context holds {max_context} tokens "
            "for prompt and answer together: shorten the prompt"
        )


class QueueFull(GenerationError):
    """Too many requests wait already."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class PipelineUnavailable(GenerationError):
    """No pipeline is open right now."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class GenerationFailed(GenerationError):
    """The pipeline was lost in mid-answer and could not be brought back within the request's bounds."""


class GrammarFailed(GenerationError):
    """The answer cannot follow its grammar to the end, mostly because that grew too complex for llguidance's bounds."""


class FinishReason(StrEnum):
    """Why a sequence ended by itself. Stop strings are the API's business and end it from outside."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. `params.seed` is set; `max_tokens` None means: up to the end of the context.

    `stop_token_ids` end the sequence and are not part of the answer's text; they are empty with `ignore_eos`.
    `group`: among whose answers drafts may be looked for (an API key); "" is all. `request_id` is that of the client's
    request, so several sequences may have the same; stages log it. `trace`: see SequenceStart.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int | None = None
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    group: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New tokens of a sequence, in order. `logprobs` is empty or as long as `tokens`.

    `finish` is set on the last delta. A stop token is contained in `tokens` as its last id (usage counts it, as
    OpenAI does); the API does not show its text. `cached_tokens`: prompt tokens that were found in the prefix cache.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorStatus:
    """What a generator says of itself, for health, /v1/models and the command line.

    Where there are several pipelines, `ready` means that one is open at least, `max_context` is the largest, `epoch`
    the highest, `running`, `waiting`, `kv_blocks` and `steps` are sums, and `timings` stand with each pipeline alone.
    """

    ready: bool
    detail: str
    max_context: int
    epoch: int
    running: int
    waiting: int
    kv_blocks: int = 0
    kv_blocks_free: int = 0
    timings: tuple[StageTiming, ...] = ()
    steps: int = 0
    pipelines: tuple[PipelineStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """One pipeline's part of a GeneratorStatus. `index`: its place in the plan."""

    index: int
    ready: bool
    detail: str
    max_context: int
    epoch: int
    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_free: int
    timings: tuple[StageTiming, ...]
    steps: int


class Generator(Protocol):
    """Turns requests into tokens."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """Queue the request and yield its tokens; closing the iterator cancels it.

        Raises ContextLengthExceeded, QueueFull or PipelineUnavailable before the first delta, GrammarFailed or
        GenerationFailed later.
        """
        ...

    def status(self) -> GeneratorStatus:
        """A snapshot; `timings` are sums per stage since the pipeline opened, over `steps` steps."""
        ...
