"""spec.stages and spec.placement: how the model is cut, and which nodes may hold the pieces."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.plan.document import Device
from shoal.resource.bounds import LabelKey, Labels, LabelValue, ObjectName, Quantity, Unique
from shoal.resource.manners import WhenInUse, WorkingHours
from shoal.resource.rules import Object, rule

MAX_STAGES = 64


class StagesMode(StrEnum):
    """Who cuts the model."""

    AUTO = "Auto"
    MANUAL = "Manual"


class LayerRange(Object):
    """Consecutive layers, both ends included, counted from 0."""

    first: Annotated[int, Field(ge=0, le=4095)]
    """First layer of the stage; the model's first layer is 0."""

    last: Annotated[int, Field(ge=0, le=4095)]
    """Last layer of the stage, included."""

    @rule(cel="self.first <= self.last", message="first must not be greater than last", field="last")
    def _in_order(self) -> bool:
        return self.first <= self.last


class ManualStage(Object):
    """One stage of a manual cut. The first stage also holds the embedding, the last one the head."""

    layers: LayerRange
    """The layers that the stage holds."""

    node: ObjectName | None = None
    """Node that serves it. Without it the planner picks one that has room."""

    device: Device | None = None
    """Device that serves it. Without it: the first of spec.devices that the node has."""


class Stages(Object):
    """How the model is cut into stages."""

    mode: StagesMode = StagesMode.AUTO
    """Auto: the planner cuts. Manual: the ranges below are used as they are, after a check that they fit."""

    count: Annotated[int, Field(ge=1, le=MAX_STAGES)] | None = None
    """Auto only: exactly this many stages. Without it the planner takes what makes the slowest stage fastest."""

    manual: Annotated[tuple[ManualStage, ...], Field(max_length=MAX_STAGES)] = ()
    """Manual only: the stages. Their ranges must cover every layer of the model once."""

    @rule(
        cel="self.mode == 'Manual' || !has(self.manual) || self.manual.size() == 0",
        message="manual ranges need mode: Manual",
        field="manual",
    )
    def _ranges_need_manual(self) -> bool:
        return self.mode is StagesMode.MANUAL or not self.manual

    @rule(
        cel="self.mode == 'Auto' || (has(self.manual) && self.manual.size() > 0)",
        message="mode: Manual needs at least one range in manual",
        field="manual",
    )
    def _manual_needs_ranges(self) -> bool:
        return self.mode is StagesMode.AUTO or bool(self.manual)

    @rule(
        cel="self.mode == 'Auto' || !has(self.count)",
        message="count belongs to mode: Auto; in mode: Manual the ranges say how many stages there are",
        field="count",
    )
    def _count_needs_auto(self) -> bool:
        return self.mode is StagesMode.AUTO or self.count is None

    @rule(
        cel="!has(self.manual) || self.manual.size() == 0 || self.manual.exists_one(s, s.layers.first == 0)",
        message="exactly one range must start at layer 0",
        field="manual",
    )
    def _one_starts_at_zero(self) -> bool:
        return not self.manual or [stage.layers.first for stage in self.manual].count(0) == 1

    @rule(
        cel="!has(self.manual) || self.manual.all(s, s.layers.first == 0"
        " || self.manual.exists(t, t.layers.last + 1 == s.layers.first))",
        message="ranges must follow each other without a gap: each starts one after another's last layer",
        field="manual",
    )
    def _no_gap(self) -> bool:
        ends = {stage.layers.last for stage in self.manual}
        return all(stage.layers.first == 0 or stage.layers.first - 1 in ends for stage in self.manual)

    @rule(
        cel="!has(self.manual) || self.manual.all(s, self.manual.exists_one(t,"
        " t.layers.first <= s.layers.last && s.layers.first <= t.layers.last))",
        message="ranges must not overlap: a layer belongs to one stage",
        field="manual",
    )
    def _no_overlap(self) -> bool:
        ranges = sorted((stage.layers.first, stage.layers.last) for stage in self.manual)
        return all(before[1] < after[0] for before, after in pairwise(ranges))

    @rule(
        cel="!has(self.manual) || self.manual.all(s, !has(s.node)"
        " || self.manual.exists_one(t, has(t.node) && t.node == s.node))",
        message="a node can hold one stage of a pipeline: name each node once",
        field="manual",
    )
    def _nodes_are_unique(self) -> bool:
        named = [stage.node for stage in self.manual if stage.node is not None]
        return len(named) == len(set(named))


class Toleration(Object):
    """A taint that stage pods put up with, as in a pod."""

    key: LabelKey | None = None
    """The taint's key. Without it (operator Exists): every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """Equal: key and value match. Exists: the key matches, whatever the value."""

    value: LabelValue | None = None
    """The taint's value, with operator Equal."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Without it: every effect."""

    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = None
    """With NoExecute: how long the pod stays."""

    @rule(cel="self.operator == 'Equal' || !has(self.value)", message="operator: Exists takes no value", field="value")
    def _exists_has_no_value(self) -> bool:
        return self.operator == "Equal" or self.value is None

    @rule(cel="self.operator == 'Exists' || has(self.key)", message="operator: Equal needs a key", field="key")
    def _equal_has_key(self) -> bool:
        return self.operator == "Exists" or self.key is not None

    @rule(
        cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        message="tolerationSeconds needs effect: NoExecute",
        field="tolerationSeconds",
    )
    def _seconds_need_no_execute(self) -> bool:
        return self.toleration_seconds is None or self.effect == "NoExecute"


class NodeLimit(Object):
    """A cap for one node, below what maxMemoryFraction allows."""

    node: ObjectName
    """Name of the node."""

    memory: Quantity
    """The most that a stage may take there at its peak, such as `6Gi`."""


class Placement(Object):
    """Which nodes may hold stages, and how much of them."""

    node_selector: Labels = Field(default_factory=dict)
    """Only nodes with all these labels get stages. Without it: nodes that have the label `shoal.dev/platform`."""

    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints that stages put up with."""

    spare_pods: Annotated[int, Field(ge=0, le=16)] = 0
    """Stages that are loaded on nodes which hold none, to take the place of a lost one at once."""

    max_memory_fraction: Annotated[float, Field(ge=0.05, le=0.95)] = 0.7
    """Share of a node's free memory that a stage may take at its peak. The person at the PC needs the rest."""

    node_limits: Annotated[
        tuple[NodeLimit, ...],
        Field(max_length=MAX_STAGES),
        Unique("node"),
    ] = ()
    """Caps for single nodes."""

    priority_class_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """PriorityClass of the stage pods. Without it: the operator's own low class, so that the person's work wins."""

    when_in_use: WhenInUse = WhenInUse.IGNORE
    """What happens while somebody uses a PC that holds a stage, as the agent on it says. Ignore: nothing. Yield: the
    stage is loaded on another PC that is free, and moves there; where none can hold it, it stays and Degraded says so.
    A PC in use gets no new stage."""

    working_hours: WorkingHours | None = None
    """Yield only: hours in which every PC with an agent counts as in use."""

    @rule(
        cel="!has(self.workingHours) || self.whenInUse == 'Yield'",
        message="workingHours need whenInUse: Yield",
        field="workingHours",
    )
    def _hours_need_yield(self) -> bool:
        return self.working_hours is None or self.when_in_use is WhenInUse.YIELD
