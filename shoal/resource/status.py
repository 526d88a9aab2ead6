"""status: what the operator found. Written in one place only, and never with figures that change by the second."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, WithJsonSchema

from shoal.plan.document import Device
from shoal.resource.bounds import Unique
from shoal.resource.rules import Object
from shoal.resource.stages import MAX_STAGES

MAX_PIPELINES = 16

Text = Annotated[str, StringConstraints(max_length=1024)]
Name = Annotated[str, StringConstraints(max_length=253)]
Count = Annotated[int, Field(ge=0, le=2_147_483_647)]
Bytes = Annotated[int, Field(ge=0), WithJsonSchema({"type": "integer", "format": "int64", "minimum": 0})]
Timestamp = Annotated[str, StringConstraints(max_length=64), Field(json_schema_extra={"format": "date-time"})]


class _StatusObject(Object):
    """A status may have been written by another version: fields that are not known are skipped."""

    model_config = ConfigDict(extra="ignore")


class ConditionType(StrEnum):
    """What the conditions say. Ready is the sum of those before it; Degraded and Progressing stand outside."""

    PLANNED = "Planned"
    MODEL_AVAILABLE = "ModelAvailable"
    STAGES_READY = "StagesReady"
    ROUTER_READY = "RouterReady"
    CHAIN_HEALTHY = "ChainHealthy"
    READY = "Ready"
    DEGRADED = "Degraded"
    PROGRESSING = "Progressing"


class Condition(_StatusObject):
    """One observation, as Kubernetes defines conditions."""

    type: Annotated[str, StringConstraints(max_length=316, pattern=r"^[A-Za-z]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")]
    """What is observed: Planned, ModelAvailable, StagesReady, RouterReady, ChainHealthy, Ready, Degraded or
    Progressing."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
    """Why, in one CamelCase word."""

    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    """Why, for a person."""

    observed_generation: Count | None = None
    """The generation of the spec that this was found for."""

    last_transition_time: Timestamp
    """When `status` last changed."""


class StageStatus(_StatusObject):
    """One planned stage."""

    index: Annotated[int, Field(ge=0, le=MAX_STAGES - 1)]
    """Its place in the pipeline."""

    node: Name
    """Node that serves it."""

    device: Device
    """Device that serves it."""

    layers: Annotated[str, StringConstraints(max_length=64)]
    """What it holds, such as `embed, 0-15` or `16-31, head`."""

    memory_bytes: Bytes
    """Its peak memory."""

    ready: bool = False
    """Whether it can run a token."""


class PipelineStatus(_StatusObject):
    """One pipeline."""

    index: Annotated[int, Field(ge=0, le=MAX_PIPELINES - 1)]
    """Its number."""

    stages: Annotated[tuple[StageStatus, ...], Field(max_length=MAX_STAGES)] = ()
    """Its stages, in order."""


class PlanStatus(_StatusObject):
    """The plan in force."""

    summary: Text = ""
    """One line: nodes and layers."""

    pipelines: Annotated[tuple[PipelineStatus, ...], Field(max_length=MAX_PIPELINES)] = ()
    """The pipelines."""

    standbys: Annotated[tuple[StageStatus, ...], Field(max_length=16)] = ()
    """Stages that are loaded on further nodes, to take the place of the stage of the same index at once."""

    spares: Annotated[tuple[Name, ...], Field(max_length=256)] = ()
    """Nodes that could hold a stage and hold none."""

    reasons: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    """Why the plan is so, in words and numbers."""

    advice: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    """What would be better."""

    tokens_per_second: Count | None = None
    """Estimate of the planner for one user, without speculation."""


class MeasuredStatus(_StatusObject):
    """What the router measured once, when the stages had loaded: one user, while nobody else asked."""

    placement: Annotated[str, StringConstraints(max_length=64)]
    """Of which plan it was measured."""

    first_token_milliseconds: Annotated[float, Field(ge=0)]
    """From the request to its first token."""

    tokens_per_second: Annotated[float, Field(ge=0)]
    """Of the tokens that followed."""

    prompt_tokens: Count
    """Length of its prompt."""


class ShardedModelStatus(_StatusObject):
    """What was found."""

    observed_generation: Count | None = None
    """The generation of the spec that this status is about."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(max_length=16),
        Unique("type"),
    ] = ()
    """Conditions. Ready is True when every other one except Degraded and Progressing is."""

    replicas: Count = 0
    """Pipelines that exist."""

    ready_replicas: Count = 0
    """Pipelines that can serve."""

    selector: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Label selector of the stage pods, for the scale subresource."""

    stages: Annotated[str, StringConstraints(max_length=32)] = ""
    """Ready and planned stages, such as `2/2`."""

    devices: Annotated[str, StringConstraints(max_length=64)] = ""
    """Devices in use, such as `GPU`."""

    url: Annotated[str, StringConstraints(max_length=2048)] = ""
    """Where the OpenAI API answers."""

    model_digest: Annotated[str, StringConstraints(max_length=64)] = ""
    """Digest of the compiled model in use."""

    plan: PlanStatus | None = None
    """The plan in force."""

    measured: MeasuredStatus | None = None
    """What a lone user gets of it. Measured anew when stages move."""
