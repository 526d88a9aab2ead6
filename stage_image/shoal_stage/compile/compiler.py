"""From a checkpoint to a model directory: block by block, resumable, atomic."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

import shoal
from shoal.errors import ManifestError, UsageError
from shoal.manifest import MANIFEST_FILE, Block, BlockKind, Manifest, Precision, read_manifest
from shoal_stage.compile.blocks import BlockName, Storage, block_names, build_block, keeping_stored, storage_for
from shoal_stage.compile.check import check_layer
from shoal_stage.compile.estimate import block_bytes
from shoal_stage.compile.fetch import ResolvedSource
from shoal_stage.compile.progress import OnProgress, Report, silent
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.readers.checkpoint import EMBEDDING, OUTPUT, Checkpoint
from shoal_stage.compile.tokenizer import build_tokenizer, write_tokenizer
from shoal_stage.compile.workplace import Workplace, check_space, open_workplace, write_durably

FORMAT = "3"
"""Grows when the same inputs give other bytes, so that unfinished work of an older compiler is not mixed in."""

_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What the user chooses. `group_size` None lets the compiler choose; `name` None takes the checkpoint's name.

    `keep_stored`: with INT4, a GGUF file whose layers are in 4 bits keeps its own numbers. Only CPUs take their zero
    points.
    """

    precision: Precision = Precision.INT4
    group_size: int | None = None
    name: str | None = None
    keep_stored: bool = False


def compile_model(
    source: ResolvedSource | Path,
    destination: Path,
    options: CompileOptions,
    progress: OnProgress = silent,
    note: Callable[[str], None] = lambda _: None,
) -> Path:
    """Compile a GGUF file or a Hugging Face directory into the model directory `destination`; returns it.

    An existing directory of the same checkpoint and options is returned as it is. An interrupted compile goes on where
    it stopped. `note` is told what a user should know, such as a context that was cut. Raises CheckpointError,
    UsageError, ResourceError.
    """
    path = source.path if isinstance(source, ResolvedSource) else source
    checkpoint = open_checkpoint(path)
    storage = _storage(checkpoint, options)
    tokenizer = build_tokenizer(checkpoint.tokenizer, checkpoint.architecture.vocab_size)
    for text in (*checkpoint.architecture.notes, *tokenizer.notes):
        note(text)
    sizes = _read_sizes(checkpoint)
    total = sum(sizes.values())
    progress(Report("reading the checkpoint's digest", 0, total))
    source_sha256 = checkpoint.digest()
    name = options.name or (source.name if isinstance(source, ResolvedSource) else path.stem)
    if destination.exists():
        return _existing(destination, source_sha256, storage)
    with open_workplace(destination, _key(source_sha256, storage)) as workplace:
        _check_space(checkpoint, storage, workplace)
        blocks, done = [], 0
        for place in block_names(checkpoint.architecture.layers):
            progress(Report(place.name, done, total))
            blocks.append(workplace.finished(place.name) or _write(checkpoint, place, storage, workplace))
            done += sizes[place.name]
        progress(Report("tokenizer", done, total))
        manifest = Manifest(
            name=name,
            source_sha256=source_sha256,
            precision=options.precision,
            group_size=storage.layers.group if storage.layers else None,
            keeps_stored=storage.keeps_stored,
            shape=checkpoint.architecture.shape(),
            tied_embeddings=checkpoint.architecture.tied_embeddings,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_ids=tokenizer.eos_token_ids,
            blocks=tuple(blocks),
            tokenizer=write_tokenizer(tokenizer, workplace.directory),
            compiler={"shoal": shoal.__version__, "openvino": ov.__version__},
        )
        write_durably(workplace.directory / MANIFEST_FILE, manifest.canonical_json())
        workplace.publish(destination)
    progress(Report("done", total, total))
    return destination


def _storage(checkpoint: Checkpoint, options: CompileOptions) -> Storage:
    storage = storage_for(checkpoint.architecture, options.precision, options.group_size)
    if not options.keep_stored:
        return storage
    if options.precision is not Precision.INT4 or options.group_size is not None:
        raise UsageError("a checkpoint's own 4-bit numbers are kept with INT4 and without a group size: choose one")
    return keeping_stored(storage, checkpoint.tensors)


def _write(checkpoint: Checkpoint, place: BlockName, storage: Storage, workplace: Workplace) -> Block:
    model = build_block(checkpoint, place, storage)
    if place.layer == 0:
        check_layer(model)
    block = workplace.write_block(model, place.name, place.kind)
    del model
    checkpoint.let_go()
    gc.collect()  # graphs hold reference cycles; without this two layers would be in memory
    return block


def _read_sizes(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes that each block reads from the checkpoint."""
    head = EMBEDDING if checkpoint.architecture.tied_embeddings else OUTPUT
    sizes = {}
    for place in block_names(checkpoint.architecture.layers):
        match place.kind:
            case BlockKind.LAYER:
                sizes[place.name] = checkpoint.layer_bytes(place.layer)
            case BlockKind.EMBED:
                sizes[place.name] = checkpoint.tensor(EMBEDDING).stored_bytes
            case BlockKind.HEAD:
                sizes[place.name] = checkpoint.tensor(head).stored_bytes
    return sizes


def _key(source_sha256: str, storage: Storage) -> str:
    facts = [FORMAT, shoal.__version__, ov.__version__, source_sha256, repr(storage)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _existing(destination: Path, source_sha256: str, storage: Storage) -> Path:
    try:
        manifest = read_manifest(destination)
    except ManifestError:
        raise UsageError(f"{destination} exists and is no model directory: choose another output") from None
    group = storage.layers.group if storage.layers else None
    found = manifest.source_sha256, manifest.precision, manifest.group_size, manifest.keeps_stored
    if found == (source_sha256, storage.precision, group, storage.keeps_stored):
        return destination
    raise UsageError(
        f"{destination} holds {manifest.name} in {manifest.precision} from another checkpoint or with other options: "
        "choose another output or remove it"
    )


def _check_space(checkpoint: Checkpoint, storage: Storage, workplace: Workplace) -> None:
    needed = sum(block_bytes(checkpoint.architecture, storage)) + _SPARE_BYTES
    check_space(workplace.directory, max(0, needed - workplace.finished_bytes()))
