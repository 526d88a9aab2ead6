"""The nodes file of `shoal plan --nodes nodes.yaml`: PCs that exist, or that somebody thinks of buying.

nodes:
  - name: pc-01
    devices: [GPU, CPU]
    memory: {total: 32Gi, free: 24Gi}
    maxMemory: 16Gi          # optional cap of this PC
    speed: {GPU: 1.0}        # optional, relative to this device of a Lunar Lake PC
    linkMs: 0.4              # optional round trip to its neighbours
    labels: {shoal.dev/platform: lunar-lake}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from shoal.plan.document import Device
from shoal.resource.bounds import Labels, ObjectName, Quantity, Unique, quantity_bytes
from shoal.resource.load import read_text
from shoal.resource.rules import Object
from shoal.resource.yaml_source import read_document, validated


class NodeMemory(Object):
    """Memory of a PC."""

    total: Quantity
    """What is built in."""

    free: Quantity
    """What nothing else uses: the planner takes at most placement.maxMemoryFraction of it."""

    @model_validator(mode="after")
    def _free_is_part_of_total(self) -> Self:
        if quantity_bytes(self.free) > quantity_bytes(self.total):
            raise ValueError(f"free ({self.free}) must not be greater than total ({self.total})")
        return self


class NodeEntry(Object):
    """One PC."""

    name: ObjectName
    """Its name in the plan."""

    devices: Annotated[tuple[Device, ...], Field(min_length=1, max_length=3)] = (Device.GPU, Device.CPU)
    """The devices that it has."""

    memory: NodeMemory
    """Its memory."""

    max_memory: Quantity | None = None
    """The most that a stage may take here, below what maxMemoryFraction allows."""

    speed: dict[Device, Annotated[float, Field(gt=0, le=1000)]] = Field(default_factory=dict)
    """Speed of its devices relative to those of a Lunar Lake PC (default 1): 0.5 takes twice the time."""

    link_ms: Annotated[float, Field(ge=0, le=60_000)] = 0.5
    """Round trip to the other PCs in milliseconds."""

    labels: Labels = Field(default_factory=dict)
    """Labels, for placement.nodeSelector."""


class NodesFile(Object):
    """All PCs of the file."""

    nodes: Annotated[tuple[NodeEntry, ...], Field(min_length=1, max_length=256), Unique("name")]
    """The PCs."""


def load_nodes(path: Path) -> NodesFile:
    """Read a nodes file; raises ManifestError with file, line and field."""
    return parse_nodes(read_text(path), origin=str(path))


def parse_nodes(text: str, *, origin: str = "nodes") -> NodesFile:
    """Read the text of a nodes file."""
    return validated(NodesFile, read_document(text, origin))
