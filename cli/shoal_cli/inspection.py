"""The facts that `shoal inspect` shows, as data and as words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.manifest import ModelShape, read_manifest, verify_files
from shoal_cli.terminal import bytes_text


def directory_facts(path: Path, *, verify: bool) -> dict[str, Any]:
    """Facts of a model directory; with `verify` every file is read. Raises ManifestError, IntegrityError."""
    manifest = read_manifest(path)
    if verify:
        verify_files(path, manifest.files_of(0, len(manifest.blocks)) + manifest.tokenizer)
    return {
        "kind": "model directory",
        "path": str(path),
        "name": manifest.name,
        "digest": manifest.digest,
        "sourceSha256": manifest.source_sha256,
        "precision": str(manifest.precision),
        "groupSize": manifest.group_size,
        **_shape(manifest.shape),
        **_blocks([block.weight_bytes for block in manifest.blocks]),
        "tokenizer": [entry.path for entry in manifest.tokenizer],
        "compiler": manifest.compiler,
        "verified": verify,
    }


def checkpoint_facts(path: Path, *, digest: bool) -> dict[str, Any]:
    """Facts of a GGUF file or a Hugging Face directory, from its header; with `digest` all of it is read.

    Raises CheckpointError.
    """
    from shoal_stage.compile.readers import open_checkpoint

    checkpoint = open_checkpoint(path)
    facts = {
        "kind": "Hugging Face directory" if path.is_dir() else "GGUF file",
        "path": str(path),
        **_shape(checkpoint.architecture.shape()),
        "tensors": len(checkpoint.tensors),
        "weightBytes": sum(tensor.stored_bytes for tensor in checkpoint.tensors.values()),
        "notes": list(checkpoint.architecture.notes),
    }
    return {**facts, "sha256": checkpoint.digest()} if digest else facts


def in_words(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts for a table: sizes with units, lists joined, what is not there left out."""
    words = {}
    for name, value in facts.items():
        if value in (None, [], {}):
            continue
        if name.endswith("Bytes"):
            words[_label(name)] = bytes_text(value)
        elif isinstance(value, bool):
            words[_label(name)] = "yes" if value else "no (--verify reads every file)"
        elif isinstance(value, Mapping):
            words[_label(name)] = ", ".join(f"{key} {each}" for key, each in value.items())
        else:
            words[_label(name)] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return words


def _shape(shape: ModelShape) -> dict[str, Any]:
    return {
        "family": shape.family,
        "layers": shape.layers,
        "hiddenSize": shape.hidden_size,
        "heads": shape.heads,
        "kvHeads": shape.kv_heads,
        "headSize": shape.head_size,
        "vocabulary": shape.vocab_size,
        "maxContext": shape.max_context,
    }


def _blocks(sizes: list[int]) -> dict[str, Any]:
    return {
        "blocks": len(sizes),
        "weightBytes": sum(sizes),
        "embeddingBytes": sizes[0],
        "largestLayerBytes": max(sizes[1:-1]),
        "headBytes": sizes[-1],
    }


def _label(name: str) -> str:
    """'maxContext' -> 'max context'."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).removesuffix(" bytes")
