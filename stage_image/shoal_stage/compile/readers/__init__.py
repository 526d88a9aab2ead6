"""Readers of checkpoints: GGUF files and Hugging Face directories, seen through one interface."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import CheckpointError
from shoal_stage.compile.readers.checkpoint import Checkpoint
from shoal_stage.compile.readers.gguf import read_gguf
from shoal_stage.compile.readers.hugging_face import read_hugging_face


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory by what it is. Raises CheckpointError."""
    if path.is_dir():
        return read_hugging_face(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    return read_gguf(path)
