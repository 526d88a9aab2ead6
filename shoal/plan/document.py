"""plan.json: which node serves which blocks. Written by the planner, read by the router, the runtime and the operator.

The same document serves a file on one machine and a ConfigMap in a cluster. `address` is filled in by whoever starts
the stages; the planner leaves it empty.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal.manifest import Sha256


class Device(StrEnum):
    """An OpenVINO device by its name. There is no AUTO: a silent fall-back to the CPU is never wanted."""

    CPU = "CPU"
    GPU = "GPU"
    NPU = "NPU"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class MemorySum(_Document):
    """Peak memory of a stage in bytes, term by term; `total` is what the planner compares with the node's limit."""

    weights: int = Field(ge=0)
    load_peak: int = Field(ge=0, alias="loadPeak", description="weights x load factor - weights: only while loading")
    kv: int = Field(ge=0)
    runtime: int = Field(ge=0, description="what the process takes beside weights and KV")

    @property
    def total(self) -> int:
        """Peak bytes: the load peak and the KV memory do not add up, the larger of the two counts."""
        return self.weights + max(self.load_peak, self.kv) + self.runtime


class StagePlan(_Document):
    """One stage: blocks [block_start, block_end) on one device of one node."""

    index: int = Field(ge=0)
    node: str
    device: Device
    block_start: int = Field(ge=0, alias="blockStart")
    block_end: int = Field(ge=1, alias="blockEnd")
    memory: MemorySum
    step_ms: float = Field(default=0.0, ge=0, alias="stepMs", description="estimated time of one token, ms")
    hop_ms: float = Field(default=0.0, ge=0, alias="hopMs", description="round trip to its neighbours, ms")
    limit: int = Field(default=0, ge=0, description="bytes that the stage may take on the node; 0 = not recorded")
    kv_bytes_per_token: int = Field(default=0, ge=0, alias="kvBytesPerToken")
    address: str = Field(default="", description="host:port of the stage's gRPC server")

    def describe_blocks(self, layers: int) -> str:
        """The blocks for a person, of a model with that many layers: `embed, layers 0-15`."""
        parts = ["embed"] if self.block_start == 0 else []
        first, last = max(self.block_start, 1) - 1, min(self.block_end, layers + 1) - 2
        if first <= last:
            parts.append(f"layer {first}" if first == last else f"layers {first}-{last}")
        return ", ".join([*parts, "head"] if self.block_end == layers + 2 else parts)


class PipelinePlan(_Document):
    """The stages that together hold all blocks, in order."""

    index: int = Field(ge=0)
    stages: tuple[StagePlan, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _covers_every_block_once(self) -> PipelinePlan:
        at = 0
        for number, stage in enumerate(self.stages):
            if stage.index != number or stage.block_start != at or stage.block_end <= at:
                held = f"{stage.block_start}-{stage.block_end}"
                raise ValueError(f"stage {number} must start at block {at}, it holds {held}")
            at = stage.block_end
        return self

    @property
    def slowest_ms(self) -> float:
        """Time of the slowest stage with its hop: a full pipeline gives one micro-batch in this time."""
        return max(stage.step_ms + stage.hop_ms for stage in self.stages)

    @property
    def token_ms(self) -> float:
        """Time of one token of a lone user: through every stage and hop."""
        return sum(stage.step_ms + stage.hop_ms for stage in self.stages)


class Standby(_Document):
    """A stage that is loaded on a node which holds no other, to take the place of one that is lost."""

    pipeline: int = Field(ge=0)
    stage: StagePlan


class Plan(_Document):
    """The planner's answer. `reasons` say in words and numbers why it is so; `advice` what would be better.

    `kv_tokens` of every stage are reserved: `streams` sequences of `max_context` tokens. `spares` are nodes that hold
    nothing and could hold at least one of the stages.
    """

    model_digest: Sha256 | None = Field(default=None, alias="modelDigest")
    layers: int = Field(default=0, ge=0, description="layers of the model; 0 = not recorded")
    streams: int = Field(default=0, ge=0)
    max_context: int = Field(default=0, ge=0, alias="maxContext", description="tokens of one sequence")
    pipelines: tuple[PipelinePlan, ...] = Field(min_length=1)
    spares: tuple[str, ...] = ()
    standbys: tuple[Standby, ...] = ()
    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    fits_one_node: bool = Field(default=False, alias="fitsOneNode")

    @property
    def everywhere(self) -> tuple[StagePlan, ...]:
        """Every stage that takes memory somewhere, those that only stand by too."""
        serving = [stage for pipeline in self.pipelines for stage in pipeline.stages]
        return (*serving, *(standby.stage for standby in self.standbys))

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV memory every stage reserves."""
        return self.streams * self.max_context
