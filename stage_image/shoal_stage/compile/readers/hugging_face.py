"""Hugging Face directories: config.json as an `Architecture`, tensors by rows from mapped safetensors files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy, which safetensors looks up)
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from shoal.errors import CheckpointError
from shoal.manifest import file_sha256
from shoal_stage.compile.families import family_of_hugging_face
from shoal_stage.compile.readers.checkpoint import Checkpoint, TensorView, check_tensors
from shoal_stage.compile.readers.hugging_face_config import read_architecture
from shoal_stage.compile.tokenizer.source import HuggingFaceTokenizer

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
READABLE = {"F32": 4, "F16": 2, "BF16": 2}


def read_hugging_face(directory: Path) -> Checkpoint:
    """Open a directory. Raises CheckpointError when a file is missing, damaged or of an unknown kind."""
    config = read_json(directory / CONFIG)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{directory / CONFIG} does not say its model_type")
    family = family_of_hugging_face(model_type, str(directory))
    files = _weight_files(directory)
    tensors: dict[str, TensorView] = {}
    for path in files:
        tensors |= _open(path)
    # Some checkpoints carry RoPE's frequencies, which follow from the configuration.
    tensors = {name: view for name, view in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    architecture = read_architecture(config, directory / CONFIG, family, tensors)
    check_tensors(directory, architecture, tensors)
    return Checkpoint(
        path=directory,
        family=family,
        architecture=architecture,
        tensors=tensors,
        tokenizer=HuggingFaceTokenizer(directory, config),
        digest=lambda: _digest(directory, files),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is no Hugging Face checkpoint: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def _weight_files(directory: Path) -> list[Path]:
    if (directory / INDEX).exists():
        named = read_json(directory / INDEX).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise CheckpointError(f"{directory / INDEX} has no usable weight_map")
        files = [directory / name for name in sorted(set(named.values()))]
        if any(path.parent != directory for path in files):
            raise CheckpointError(f"{directory / INDEX} names files outside its directory")
    elif (directory / SINGLE).exists():
        files = [directory / SINGLE]
    else:
        raise CheckpointError(f"{directory} holds neither {SINGLE} nor {INDEX}; other formats are not read")
    for path in files:
        if not path.exists():
            raise CheckpointError(f"{directory} lacks {path.name}, which its index names: fetch it again")
    return files


def _open(path: Path) -> dict[str, TensorView]:
    try:
        handle = safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({error}): fetch it again") from error
    views = {}
    for name in handle.keys():  # type: ignore[no-untyped-call]  # noqa: SIM118  (the handle is no mapping)
        slice_ = handle.get_slice(name)  # type: ignore[no-untyped-call]
        shape, dtype = tuple(slice_.get_shape()), str(slice_.get_dtype())
        if dtype not in READABLE:
            raise CheckpointError(f"{path}: tensor {name} is stored as {dtype}; shoal reads {', '.join(READABLE)}")
        views[name] = TensorView(
            name=name,
            origin=f"{path}: {name}",
            shape=shape,
            stored_bytes=int(np.prod(shape)) * READABLE[dtype],
            read=_reader(slice_),
        )
    return views


def _reader(slice_: Any) -> Callable[[int, int], NDArray[np.float32]]:
    return lambda start, end: np.asarray(slice_[start:end]).astype(np.float32)


def _digest(directory: Path, weights: list[Path]) -> str:
    """sha256 over the names and digests of the files that the model is made of."""
    others = [path for path in directory.glob("*.json*") if path.is_file()] + list(directory.glob("*.jinja"))
    total = hashlib.sha256()
    for path in sorted({*weights, *others}):
        total.update(f"{path.name} {file_sha256(path)}\n".encode())
    return total.hexdigest()
