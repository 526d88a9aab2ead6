"""The tokenizer of a model directory: from Hugging Face's files, or built from the tables in a GGUF file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shoal.manifest import TOKENIZER_DIR, FileEntry
from shoal_stage.compile.tokenizer.built import BuiltTokenizer
from shoal_stage.compile.tokenizer.gguf_tables import from_gguf
from shoal_stage.compile.tokenizer.hugging_face_files import from_hugging_face
from shoal_stage.compile.tokenizer.source import GgufTokenizer, TokenizerSource


def build_tokenizer(source: TokenizerSource, vocab_size: int) -> BuiltTokenizer:
    """Build it in memory. Raises CheckpointError when there is none, or it does not fit a vocabulary of that size."""
    return from_gguf(source, vocab_size) if isinstance(source, GgufTokenizer) else from_hugging_face(source, vocab_size)


def write_tokenizer(tokenizer: BuiltTokenizer, directory: Path) -> tuple[FileEntry, ...]:
    """Write the files below `directory`; returns their entries for the manifest."""
    from shoal_stage.compile.workplace import disk_errors, write_durably

    folder = directory / TOKENIZER_DIR
    with disk_errors(directory):
        folder.mkdir(exist_ok=True)
        for name, data in tokenizer.files.items():
            write_durably(folder / name, data)
    return tuple(
        FileEntry(path=f"{TOKENIZER_DIR}/{name}", bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in sorted(tokenizer.files.items())
    )
