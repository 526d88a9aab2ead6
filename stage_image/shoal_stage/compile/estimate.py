"""Sizes of blocks from a checkpoint's header alone: what the planner needs before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.manifest import ModelShape, Precision
from shoal_stage.compile.architecture import Architecture
from shoal_stage.compile.blocks import Storage, keeping_stored, storage_for
from shoal_stage.compile.families import family_of_hugging_face
from shoal_stage.compile.quantise import Scheme
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.readers.checkpoint import EMBEDDING, expected_tensors, layer_prefix
from shoal_stage.compile.readers.hugging_face import read_json
from shoal_stage.compile.readers.hugging_face_config import read_architecture


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A checkpoint as the planner sees it: shape, and bytes of each block's weights in one precision."""

    shape: ModelShape
    precision: Precision
    group_size: int | None
    zero_points: bool
    block_bytes: tuple[int, ...]


def describe_checkpoint(
    path: Path, precision: Precision = Precision.INT4, group_size: int | None = None, *, keep_stored: bool = False
) -> CheckpointFacts:
    """Read only the header of a GGUF file or a Hugging Face directory. Raises CheckpointError, UsageError."""
    checkpoint = open_checkpoint(path)
    storage = storage_for(checkpoint.architecture, precision, group_size)
    if keep_stored:
        storage = keeping_stored(storage, checkpoint.tensors)
    return _facts(checkpoint.architecture, storage)


def describe_config(
    path: Path, precision: Precision = Precision.INT4, group_size: int | None = None
) -> CheckpointFacts:
    """The same from a config.json alone. Biases that only tensors tell of are left out: they are a few kB a layer."""
    values = read_json(path)
    family = family_of_hugging_face(str(values.get("model_type")), str(path))
    architecture = read_architecture(values, path, family, {})
    return _facts(architecture, storage_for(architecture, precision, group_size))


def _facts(architecture: Architecture, storage: Storage) -> CheckpointFacts:
    layers = storage.layers
    return CheckpointFacts(
        architecture.shape(),
        storage.precision,
        layers.group if layers else None,
        layers is not None and layers.zero_points,
        block_bytes(architecture, storage),
    )


def block_bytes(architecture: Architecture, storage: Storage) -> tuple[int, ...]:
    """Bytes of the weights of each block, embedding first, head last."""
    tensors = expected_tensors(architecture)
    layers = [0] * architecture.layers
    for number in range(architecture.layers):
        prefix = layer_prefix(number)
        layers[number] = sum(
            _tensor_bytes(shape, storage.precision, storage.of_layer(name))
            for name, shape in tensors.items()
            if name.startswith(prefix)
        )
    end = _tensor_bytes(tensors[EMBEDDING], storage.precision, storage.ends)
    return (end, *layers, end + 4 * architecture.hidden_size)


def _tensor_bytes(shape: tuple[int, ...], precision: Precision, scheme: Scheme | None) -> int:
    if len(shape) == 1:
        return 4 * shape[0]  # norms and biases stay f32
    if scheme is not None:
        return scheme.bytes_of(*shape)
    return shape[0] * shape[1] * (2 if precision is Precision.F16 else 4)
