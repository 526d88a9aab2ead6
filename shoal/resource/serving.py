"""How requests are computed: spec.scheduler and spec.recovery."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from shoal.manifest import Precision
from shoal.resource.rules import Object, rule
from shoal.resource.source import Source, Volume


class KvPrecision(StrEnum):
    """How keys and values are stored."""

    AUTO = "Auto"
    U8 = "U8"
    F16 = "F16"
    F32 = "F32"


class SpeculativeMode(StrEnum):
    """Whether tokens are drafted and verified several at a time."""

    AUTO = "Auto"
    OFF = "Off"
    FIXED = "Fixed"


class Draft(Object):
    """A small model with the same vocabulary that proposes tokens. It runs beside the router."""

    source: Source | None = None
    """A checkpoint that is fetched and compiled once."""

    volume: Volume | None = None
    """A model directory that is compiled already."""

    precision: Precision = Precision.INT4
    """How its weights are stored, when it is compiled from a source."""

    @rule(cel="has(self.source) != has(self.volume)", message="set exactly one of source and volume")
    def _one_origin(self) -> bool:
        return (self.source is None) != (self.volume is None)


class Speculative(Object):
    """Speculation: it changes the speed, never the text."""

    mode: SpeculativeMode = SpeculativeMode.AUTO
    """Auto: as many tokens as pays for each sequence, none when it does not. Fixed: always maxTokens. Off: none."""

    draft: Draft | None = None
    """Draft model. Without it drafts come from the text itself (the prompt and finished answers)."""

    max_tokens: Annotated[int, Field(ge=1, le=32)] = 8
    """Most tokens drafted at a time."""


class Scheduler(Object):
    """What a pipeline computes at the same time. The planner reserves the KV memory for it."""

    streams: Annotated[int, Field(ge=1, le=256)] = 4
    """Sequences that a pipeline computes at the same time. Memory for them is reserved: streams x maxContext tokens."""

    max_context: Annotated[int, Field(ge=128, le=1_048_576)] | None = None
    """Most tokens of a sequence, prompt and answer together; a longer prompt is refused. Without it: what the model was
    made for, at most 4096."""

    prefill_chunk: Annotated[int, Field(ge=16, le=8192)] = 256
    """Most prompt tokens in one step: less keeps other users' tokens coming, more reads prompts faster."""

    max_queue: Annotated[int, Field(ge=0, le=4096)] = 64
    """Requests that may wait when all streams are busy; further ones get 429."""

    kv_precision: KvPrecision = KvPrecision.AUTO
    """How keys and values are stored. Auto: F32 with execution mode Exact, else F16."""

    prefix_cache: bool = True
    """Keep KV pages of finished prompts, so that a prompt with the same beginning is not computed again. Engines
    without pages (the stateful one) have nothing to keep."""

    speculative: Speculative = Field(default_factory=Speculative)
    """Speculation."""

    @rule(
        cel="!has(self.maxContext) || self.prefillChunk <= self.maxContext",
        message="prefillChunk must not be greater than maxContext",
        field="prefillChunk",
    )
    def _chunk_fits_context(self) -> bool:
        return self.max_context is None or self.prefill_chunk <= self.max_context


class Recovery(Object):
    """What happens when a stage is lost in the middle of answers."""

    replan_after_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """How long a node may be gone before its stage is planned onto another one."""

    free_after_seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """How long the other stages of a pipeline keep their nodes when a lost one finds no place. Then they go, and the
    pipeline comes back when nodes can hold it. Without it: they stay loaded, and go on when there is a place."""

    max_attempts: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a request is replayed after a loss before it ends with an error."""

    max_pause_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    """How long an answer may pause for a recovery before it ends with an error."""

    @rule(
        cel="!has(self.freeAfterSeconds) || self.freeAfterSeconds >= self.replanAfterSeconds",
        message="freeAfterSeconds must not be less than replanAfterSeconds",
        field="freeAfterSeconds",
    )
    def _replanned_before_freed(self) -> bool:
        return self.free_after_seconds is None or self.free_after_seconds >= self.replan_after_seconds
