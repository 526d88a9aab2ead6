"""What the planner is told: the model, the nodes and what is wanted. Plain values, gathered by somebody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.manifest import BlockKind, Manifest, ModelShape, Precision
from shoal.plan.devices import KvElement
from shoal.plan.document import Device

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a model's blocks in bytes: of the embedding, of each layer, of the head.

    `largest_tensors` holds the largest single tensor of each block in the same order; a device that cannot allocate
    it refuses the block. `layer_weights` and `head_weights` count numbers instead of bytes, of each layer and of the
    head; without them (facts that an earlier version wrote) they are not known, and bytes stand for them.
    """

    shape: ModelShape
    embed_bytes: int
    layer_bytes: tuple[int, ...]
    head_bytes: int
    largest_tensors: tuple[int, ...]
    digest: str | None = None
    layer_weights: tuple[int, ...] = ()
    head_weights: int = 0

    def __post_init__(self) -> None:
        if len(self.layer_bytes) != self.shape.layers or len(self.largest_tensors) != self.shape.layers + 2:
            raise ValueError(f"{self.shape.layers} layers need as many sizes, and a largest tensor for each block")
        if self.layer_weights and len(self.layer_weights) != self.shape.layers:
            raise ValueError(f"{self.shape.layers} layers have as many numbers of weights, or none")

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> ModelFacts:
        """The facts of a compiled model.

        The table of the embedding and of the head is one tensor. In a layer the three matrices of the MLP are the
        largest ones and equal, so none is more than a third.
        """
        sizes = [block.weight_bytes for block in manifest.blocks]
        shares = [1 if block.kind is not BlockKind.LAYER else 3 for block in manifest.blocks]
        return cls(
            shape=manifest.shape,
            embed_bytes=sizes[0],
            layer_bytes=tuple(sizes[1:-1]),
            head_bytes=sizes[-1],
            largest_tensors=tuple(size // share for size, share in zip(sizes, shares, strict=True)),
            digest=manifest.digest,
            layer_weights=_weights(
                sizes[1:-1], manifest.shape, manifest.precision, manifest.group_size, zero_points=manifest.keeps_stored
            ),
            head_weights=manifest.shape.vocab_size * manifest.shape.hidden_size,
        )

    @classmethod
    def of_sizes(
        cls,
        shape: ModelShape,
        block_bytes: Sequence[int],
        precision: Precision,
        group_size: int | None,
        *,
        zero_points: bool = False,
    ) -> ModelFacts:
        """The facts of a model that is not compiled yet, by the same rules."""
        embed, *layers, head = block_bytes
        return cls(
            shape=shape,
            embed_bytes=embed,
            layer_bytes=tuple(layers),
            head_bytes=head,
            largest_tensors=(embed, *(size // 3 for size in layers), head),
            layer_weights=_weights(layers, shape, precision, group_size, zero_points=zero_points),
            head_weights=shape.vocab_size * shape.hidden_size,
        )

    @property
    def total_bytes(self) -> int:
        """All weights."""
        return self.embed_bytes + sum(self.layer_bytes) + self.head_bytes


def _weights(
    sizes: Sequence[int], shape: ModelShape, precision: Precision, group_size: int | None, *, zero_points: bool
) -> tuple[int, ...]:
    """How many weights layers of these sizes hold: a model directory stores each in its precision, and of quantised
    ones a 16-bit scale, and zero point, for a group of columns (for a whole row without groups)."""
    bytes_each = _BYTES[precision]
    if precision in (Precision.INT4, Precision.INT8):
        bytes_each += (4 if zero_points else 2) / (group_size or shape.hidden_size)
    return tuple(round(size / bytes_each) for size in sizes)


_BYTES: Final = {Precision.INT4: 0.5, Precision.INT8: 1.0, Precision.F16: 2.0, Precision.F32: 4.0}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One place for a stage: a PC, or a share of one (then `host` names the PC and the memory is the share's own).

    `speeds` are relative to a Lunar Lake PC's device of that kind; `link_ms` is the round trip to its neighbours,
    `link_mbps` what the slowest of the links to them carries in MB/s, if somebody measured it.
    """

    name: str
    devices: tuple[Device, ...]
    memory_total: int
    memory_allocatable: int
    memory_free: int
    memory_cap: int | None = None
    speeds: Mapping[Device, float] = field(default_factory=dict)
    link_ms: float = 0.5
    link_mbps: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    host: str = ""

    @property
    def usable(self) -> int:
        """Bytes that a stage could take at all: free, and allowed to pods."""
        return max(0, min(self.memory_allocatable, self.memory_free))


def split_machine(machine: NodeFacts, parts: int) -> tuple[NodeFacts, ...]:
    """Cut one machine into `parts` equal places for stages that run on it at the same time.

    Memory and speed are divided, so that the stages together never take more than the machine has.
    """
    devices = {device: machine.speeds.get(device, 1.0) / parts for device in machine.devices}
    return tuple(
        replace(
            machine,
            name=machine.name if parts == 1 else f"{machine.name}-{part}",
            host=machine.host or machine.name,
            memory_total=machine.memory_total // parts,
            memory_allocatable=machine.memory_allocatable // parts,
            memory_free=machine.memory_free // parts,
            memory_cap=None if machine.memory_cap is None else machine.memory_cap // parts,
            speeds=devices,
        )
        for part in range(parts)
    )


@dataclass(frozen=True, slots=True)
class ManualRange:
    """A stage that the user cut: layers first … last (both included), perhaps with its node and device."""

    first: int
    last: int
    node: str | None = None
    device: Device | None = None


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What is wanted of the plan. `kv` None takes each device's own; `max_context` None the model's, at most 4096."""

    devices: tuple[Device, ...]
    replicas: int = 1
    stage_count: int | None = None
    manual: tuple[ManualRange, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_limits: Mapping[str, int] = field(default_factory=dict)
    max_memory_fraction: float = 0.7
    spare_nodes: int = 0
    streams: int = 4
    max_context: int | None = None
    kv: KvElement | None = None

    def context_for(self, shape: ModelShape) -> int:
        """Tokens that one sequence may hold."""
        return self.max_context if self.max_context is not None else min(shape.max_context, DEFAULT_CONTEXT)
