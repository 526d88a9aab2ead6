"""The model directory's manifest: what the compiler writes, and the planner, the stages and the router read.

    <model directory>/
      manifest.json
      blocks/embed.xml|bin, layer-000.xml|bin, …, head.xml|bin
      tokenizer/tokenizer.json, chat_template.jinja, generation_config.json

A model directory is immutable and named by the digest of its manifest. Since the manifest holds the digest
of every file, that one name fixes every byte: a stage that pulled only its own blocks can verify them.

Blocks are numbered 0 … layers+1: block 0 is the embedding, block `i` in 1 … layers is layer `i-1`, the last
one is the head (final norm and output projection). Ranges of blocks are half-open everywhere.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal.errors import IntegrityError, ManifestError

MANIFEST_FILE = "manifest.json"
BLOCKS_DIR = "blocks"
TOKENIZER_DIR = "tokenizer"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Precision(StrEnum):
    """How a block's weights are stored. F16 and F32 are unquantised."""

    INT4 = "INT4"
    INT8 = "INT8"
    F16 = "F16"
    F32 = "F32"


class BlockKind(StrEnum):
    """The three kinds of block."""

    EMBED = "embed"
    LAYER = "layer"
    HEAD = "head"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Frozen):
    """One file of the model directory, by its path relative to the directory (POSIX separators)."""

    path: str
    bytes: int = Field(ge=0)
    sha256: Sha256

    @model_validator(mode="after")
    def _stays_inside(self) -> FileEntry:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"path {self.path!r} leaves the model directory")
        return self


class Block(_Frozen):
    """One OpenVINO IR. `weight_bytes` is the size of its weights in memory."""

    name: str
    kind: BlockKind
    xml: FileEntry
    bin: FileEntry
    weight_bytes: int = Field(ge=0)

    @property
    def files(self) -> tuple[FileEntry, FileEntry]:
        """The block's two files."""
        return (self.xml, self.bin)


class ModelShape(_Frozen):
    """The numbers of a decoder-only transformer that planner, stage and router need."""

    family: str
    layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    max_context: int = Field(ge=1, description="tokens, as the checkpoint says")

    def kv_bytes_per_token(self, layers: int, element_bytes: int) -> int:
        """KV cache bytes of one token over `layers` layers: keys and values of every KV head."""
        return 2 * layers * self.kv_heads * self.head_size * element_bytes


class Manifest(_Frozen):
    """What a model directory holds. Serialised canonically, so that its digest is stable."""

    format: Literal["shoal.dev/model-directory/v1"] = "shoal.dev/model-directory/v1"
    name: str = Field(min_length=1, max_length=253)
    source_sha256: Sha256 = Field(description="digest of the checkpoint's bytes or of its file digests")
    precision: Precision
    group_size: int | None = Field(default=None, description="columns that share a scale; None = per row")
    keeps_stored: bool = Field(default=False, description="layers hold the checkpoint's own 4-bit numbers; for CPUs")
    shape: ModelShape
    tied_embeddings: bool
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    blocks: tuple[Block, ...]
    tokenizer: tuple[FileEntry, ...] = ()
    compiler: dict[str, str] = Field(default_factory=dict, description="versions of what wrote it")

    @model_validator(mode="after")
    def _blocks_are_complete(self) -> Manifest:
        kinds = [block.kind for block in self.blocks]
        expected = [BlockKind.EMBED, *[BlockKind.LAYER] * self.shape.layers, BlockKind.HEAD]
        if kinds != expected:
            raise ValueError(f"blocks must be embed, {self.shape.layers} layers, head; found {len(kinds)} blocks")
        return self

    def canonical_json(self) -> bytes:
        """The manifest's bytes: sorted keys, no white space, UTF-8."""
        data = self.model_dump(mode="json")
        if not self.keeps_stored:
            del data["keeps_stored"]  # model directories from before there was the field keep their digest
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical bytes: the model directory's name."""
        return hashlib.sha256(self.canonical_json()).hexdigest()

    def files_of(self, start: int, end: int) -> tuple[FileEntry, ...]:
        """The files that a stage with blocks [start, end) needs."""
        return tuple(file for block in self.blocks[start:end] for file in block.files)


def read_manifest(directory: Path) -> Manifest:
    """Read and validate `directory/manifest.json`.

    Raises ManifestError when it is missing, is not JSON or does not hold together.
    """
    path = directory / MANIFEST_FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ManifestError(f"{directory} is not a model directory: it has no {MANIFEST_FILE}") from None
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise ManifestError(f"{path} cannot be used: {where}: {first['msg']}") from error


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify_files(directory: Path, files: tuple[FileEntry, ...]) -> None:
    """Compare size and digest of each file with the manifest; raises IntegrityError at the first that differs."""
    for entry in files:
        path = directory / entry.path
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise IntegrityError(f"{path} is missing: pull or compile the model again") from None
        if size != entry.bytes:
            raise IntegrityError(f"{path} has {size} bytes, its manifest says {entry.bytes}: pull or compile it again")
        found = file_sha256(path)
        if found != entry.sha256:
            raise IntegrityError(
                f"{path} has digest {found[:12]}…, its manifest says {entry.sha256[:12]}…: pull or compile it again"
            )
