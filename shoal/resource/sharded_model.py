"""The ShardedModel itself: group shoal.dev, version v1alpha1, short name smodel.

Every field of the spec may change on a living ShardedModel: the operator is level-triggered, so a change is rolled
out like any other difference, and another source or precision simply has another digest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from shoal.manifest import Precision
from shoal.plan.document import Device
from shoal.resource.bounds import Unique
from shoal.resource.images import Images
from shoal.resource.router import Router
from shoal.resource.rules import Object, rule
from shoal.resource.serving import KvPrecision, Recovery, Scheduler
from shoal.resource.source import ModelSpec
from shoal.resource.stages import Placement, Stages
from shoal.resource.status import ShardedModelStatus

GROUP: Final = "shoal.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "shoal.dev/v1alpha1"
KIND: Final = "ShardedModel"
PLURAL: Final = "shardedmodels"

# Stages are called <name>-s<index>-<hash8> and have Services, whose names end at 63 characters.
MAX_NAME: Final = 48


class ExecutionMode(StrEnum):
    """Speed or reproducibility."""

    FAST = "Fast"
    EXACT = "Exact"


class Execution(Object):
    """How stages compute."""

    mode: ExecutionMode = ExecutionMode.FAST
    """Fast: the device's native precision; the cut into stages and the batch may change last digits, and so a token.
    Exact: everything in F32, slower; the same tokens for every cut, batch and speculation."""


class ShardedModelSpec(Object):
    """What is wanted."""

    model: ModelSpec
    """Which model is served."""

    precision: Precision = Precision.INT4
    """How weights are stored when a source is compiled. A volume's model keeps its own."""

    group_size: Literal[32, 64, 128] | None = None
    """INT4 only: columns that share a scale. Without it: where only CPUs may serve (devices: [CPU]), a GGUF file whose
    layers are in 4 bits keeps its own numbers, which is more exact and a little slower; otherwise the largest of 128,
    64 and 32 that divides the layer's columns."""

    execution: Execution = Field(default_factory=Execution)
    """How stages compute."""

    replicas: Annotated[int, Field(ge=0, le=16)] = 1
    """Whole pipelines, on disjoint nodes. 0 stops serving and keeps the compiled model."""

    stages: Stages = Field(default_factory=Stages)
    """How the model is cut."""

    devices: Annotated[
        tuple[Device, ...],
        Field(min_length=1, max_length=3),
        Unique(),
    ] = (Device.GPU,)
    """Devices that may serve a stage, the preferred one first; a node uses the first one that it has. Default: the GPU
    alone, because nothing falls back to the CPU unless it is named here."""

    placement: Placement = Field(default_factory=Placement)
    """Which nodes may hold stages."""

    scheduler: Scheduler = Field(default_factory=Scheduler)
    """What a pipeline computes at the same time."""

    recovery: Recovery = Field(default_factory=Recovery)
    """What happens when a stage is lost."""

    router: Router = Field(default_factory=Router)
    """The OpenAI API."""

    image: Images = Field(default_factory=Images)
    """Container images."""

    @property
    def keeps_stored(self) -> bool:
        """Whether a source in 4 bits keeps its own numbers when it is compiled: see group_size."""
        return self.precision is Precision.INT4 and self.group_size is None and self.devices == (Device.CPU,)

    @rule(
        cel="!has(self.groupSize) || self.precision == 'INT4'",
        message="groupSize belongs to precision: INT4",
        field="groupSize",
    )
    def _group_size_needs_int4(self) -> bool:
        return self.group_size is None or self.precision is Precision.INT4

    @rule(
        cel="self.execution.mode != 'Exact' || self.scheduler.kvPrecision in ['Auto', 'F32']",
        message="execution mode Exact needs kvPrecision: F32 (or Auto, which then is F32)",
        field="scheduler.kvPrecision",
    )
    def _exact_needs_exact_kv(self) -> bool:
        exact = self.execution.mode is ExecutionMode.EXACT
        return not exact or self.scheduler.kv_precision in (KvPrecision.AUTO, KvPrecision.F32)

    @rule(
        cel="self.replicas <= 1 || !has(self.stages.manual) || !self.stages.manual.exists(s, has(s.node))",
        message="a stage with a named node can exist once: leave the nodes out, or use replicas: 1",
        field="replicas",
    )
    def _named_nodes_mean_one_pipeline(self) -> bool:
        return self.replicas <= 1 or all(stage.node is None for stage in self.stages.manual)


class Metadata(Object):
    """The part of the object's metadata that shoal reads; the API server owns the rest."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=253)]
    namespace: Annotated[str, Field(max_length=63)] | None = None
    uid: str | None = None
    generation: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: str | None = None


class ShardedModel(Object):
    """A large language model served by several PCs as one OpenAI endpoint."""

    api_version: Literal["shoal.dev/v1alpha1"]
    kind: Literal["ShardedModel"]
    metadata: Metadata
    spec: ShardedModelSpec
    status: ShardedModelStatus | None = None

    @rule(
        cel=f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message=f"metadata.name names Services too: at most {MAX_NAME} characters of a-z, 0-9 and '-', a letter first",
        field="metadata.name",
    )
    def _name_is_a_service_name(self) -> bool:
        name = self.metadata.name
        plain = name.isascii() and name.replace("-", "a").isalnum() and name == name.lower()
        return plain and len(name) <= MAX_NAME and name[0].isalpha() and not name.endswith("-")

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that the API answers to, the model's `id` first."""
        return self.spec.model.served_names or (self.metadata.name,)
