"""Blocks: which there are, how each is stored, and building one from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Node

from shoal.errors import UsageError
from shoal.manifest import BlockKind, Precision
from shoal_stage.compile.architecture import Architecture
from shoal_stage.compile.graph.ends import embedding, head
from shoal_stage.compile.graph.nodes import NodeLike
from shoal_stage.compile.graph.shared import SHARED_NODES
from shoal_stage.compile.quantise import STORED_GROUP, Scheme, choose_group
from shoal_stage.compile.readers.checkpoint import (
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    Checkpoint,
    TensorView,
    layer_prefix,
)
from shoal_stage.compile.weights import linear, weight_node


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights are stored: `layers` and `ends` (embedding and head) are None when the precision is F16 or F32.

    `own`: tensors of layers that are stored in another way, by name.
    """

    precision: Precision
    layers: Scheme | None
    ends: Scheme | None
    own: Mapping[str, Scheme] = field(default_factory=dict)

    @property
    def keeps_stored(self) -> bool:
        """Whether layers hold the checkpoint's own numbers."""
        return self.layers is not None and self.layers.kept

    def of_layer(self, name: str) -> Scheme | None:
        """How that tensor of a layer is stored."""
        return self.own.get(name, self.layers)


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block's place: its number among the blocks, its kind, its name, and the layer's number (-1 for the ends)."""

    index: int
    kind: BlockKind
    name: str
    layer: int


def block_names(layers: int) -> list[BlockName]:
    """All blocks of a model in order."""
    middle = [BlockName(n + 1, BlockKind.LAYER, f"layer-{n:03d}", n) for n in range(layers)]
    return [
        BlockName(0, BlockKind.EMBED, "embed", -1),
        *middle,
        BlockName(layers + 1, BlockKind.HEAD, "head", -1),
    ]


def storage_for(architecture: Architecture, precision: Precision, group_size: int | None = None) -> Storage:
    """The storage of a precision; `group_size` None chooses the largest usual one that divides every layer weight.

    INT4 keeps the embedding and the head at INT8: they are read once a token and carry the most error. Symmetric,
    which is what NPUs take: against zero points 15 to 20 % faster on one CPU core (SmolLM2), at the same perplexity.
    Raises UsageError when the group does not divide or the precision knows no groups.
    """
    if group_size is not None and precision is not Precision.INT4:
        raise UsageError(f"a group size belongs to INT4; {precision} has none")
    rows = Scheme(8, group=None)
    if precision is Precision.INT8:
        return Storage(precision, rows, rows)
    if precision is not Precision.INT4:
        return Storage(precision, None, None)
    columns = (architecture.hidden_size, architecture.heads * architecture.head_size, architecture.ffn_size)
    if group_size is None:
        group_size = choose_group(columns)
    elif group_size < 2 or any(count % group_size for count in columns):
        raise UsageError(
            f"group size {group_size} does not divide {' and '.join(map(str, sorted(set(columns))))}, "
            "the columns of this model's weights; leave it out to have one chosen"
        )
    return Storage(precision, Scheme(4, group=group_size), rows)


def keeping_stored(storage: Storage, tensors: Mapping[str, TensorView]) -> Storage:
    """The storage that keeps the numbers of a checkpoint whose layers are in 4 bits; of any other the one given.

    What such a file holds in more bits its author found to need them: it gets INT8. The storage must be INT4's.
    """
    matrices = {name: view for name, view in tensors.items() if _is_layer_matrix(name, view)}
    kept = {name: view.stored for name, view in matrices.items() if view.stored is not None}
    if 2 * sum(_count(matrices[name]) for name in kept) < sum(map(_count, matrices.values())) or not kept:
        return storage
    layers = Scheme(4, STORED_GROUP, kept=True, zero_points=any(stored.zero_points for stored in kept.values()))
    schemes = {name: replace(layers, zero_points=stored.zero_points) for name, stored in kept.items()}
    schemes |= {name: Scheme(8, None) for name in matrices.keys() - kept.keys()}
    own = {name: scheme for name, scheme in sorted(schemes.items()) if scheme != layers}
    return replace(storage, layers=layers, own=own)


def _is_layer_matrix(name: str, view: TensorView) -> bool:
    return len(view.shape) == 2 and name not in (EMBEDDING, OUTPUT)


def _count(view: TensorView) -> int:
    rows, columns = view.shape
    return rows * columns


def build_block(checkpoint: Checkpoint, block: BlockName, storage: Storage) -> ov.Model:
    """The block's graph with its weights read, stored in their precision. Memory: one block."""
    architecture = checkpoint.architecture
    match block.kind:
        case BlockKind.EMBED:
            model = embedding(_node(checkpoint, EMBEDDING, storage, storage.ends))
        case BlockKind.HEAD:
            name = EMBEDDING if architecture.tied_embeddings else OUTPUT
            norm = checkpoint.tensor(FINAL_NORM).whole()

            def project(x: NodeLike, weight: str) -> Node:
                return linear(x, _node(checkpoint, weight, storage, storage.ends))

            model = head(architecture, norm, project, name)
        case BlockKind.LAYER:
            model = _layer(checkpoint, block.layer, storage)
    _name_nodes(model)
    return model


def _layer(checkpoint: Checkpoint, layer: int, storage: Storage) -> ov.Model:
    prefix = layer_prefix(layer)

    def tensor(name: str) -> NDArray[np.float32]:
        return checkpoint.tensor(prefix + name).whole()

    def project(x: NodeLike, name: str) -> Node:
        return linear(x, _node(checkpoint, prefix + name, storage, storage.of_layer(prefix + name)))

    return checkpoint.family.build_layer(checkpoint.architecture, layer, tensor, project)


def _node(checkpoint: Checkpoint, name: str, storage: Storage, scheme: Scheme | None) -> Node:
    return weight_node(checkpoint.tensor(name), storage.precision, scheme)


def _name_nodes(model: ov.Model) -> None:
    """Names by place: OpenVINO's own count up over a process, so the same block would differ from run to run."""
    kept = {*SHARED_NODES, *(node.get_friendly_name() for node in model.get_parameters())}
    for number, node in enumerate(model.get_ordered_ops()):
        if node.get_friendly_name() not in kept:
            node.set_friendly_name(f"{node.get_type_name()}_{number}")
