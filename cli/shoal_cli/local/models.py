"""The model of a ShardedModel as a directory on this machine: found in the cache, or compiled into it once.

The directory is named by what went into it (where the checkpoint is, its digest and revision, precision and group
size), so that a second run needs neither the network nor the checkpoint, and a changed manifest gets its own model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.manifest import MANIFEST_FILE, Manifest, Precision, read_manifest, verify_files
from shoal.plan.document import Device
from shoal.plan.facts import ModelFacts
from shoal.resource import ModelSpec, ShardedModel, Source, SpeculativeMode, Volume
from shoal.vocabulary import check_draft_vocabulary, read_vocabulary
from shoal_cli.cache import checkpoints_dir, models_dir
from shoal_cli.terminal import progress

if TYPE_CHECKING:
    from shoal_stage.compile import CheckpointFacts, CompileOptions


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A compiled model directory."""

    path: Path
    manifest: Manifest

    @property
    def chat(self) -> bool:
        """Whether it knows how to format a conversation."""
        return any(entry.path.endswith("chat_template.jinja") for entry in self.manifest.tokenizer)


def find_or_compile(model: ShardedModel, *, verify: bool = False) -> LocalModel:
    """The ShardedModel's model directory: its volume, or the cache, or compiled now with a progress bar.

    Raises CheckpointError, UsageError, ManifestError, IntegrityError or ResourceError.
    """
    source, volume = model.spec.model.source, model.spec.model.volume
    if volume is not None:
        return _open(volume_path(volume), verify)
    assert source is not None, "ModelSpec has exactly one of source and volume"
    path = cache_path(model, source)
    if not is_compiled(path):
        compile_source(source_reference(model, source), path, options_of(model), source.sha256)
    return _open(path, verify)


def find_or_compile_draft(model: ShardedModel, target: LocalModel, *, verify: bool = False) -> LocalModel | None:
    """The draft model of the ShardedModel in the same way; None when it has none, or speculation is off.

    Raises what find_or_compile raises, and UsageError when its vocabulary is not the target's.
    """
    speculative = model.spec.scheduler.speculative
    draft = speculative.draft
    if draft is None or speculative.mode is SpeculativeMode.OFF:
        return None
    spec = model.spec.model_copy(
        update={
            "model": ModelSpec(source=draft.source, volume=draft.volume),
            "precision": draft.precision,
            "group_size": None,
            "devices": (Device.CPU,),
        }
    )
    metadata = model.metadata.model_copy(update={"name": f"{model.metadata.name}-draft"})
    found = find_or_compile(model.model_copy(update={"metadata": metadata, "spec": spec}), verify=verify)
    check_draft_vocabulary(read_vocabulary(target.path, target.manifest), read_vocabulary(found.path, found.manifest))
    return found


def model_facts(model: ShardedModel, *, fetch: bool) -> ModelFacts:
    """What the planner must know of the model, without compiling it: from its directory or the checkpoint's header.

    Raises UsageError when the checkpoint is not on this machine and `fetch` does not allow to fetch it.
    """
    source, volume = model.spec.model.source, model.spec.model.volume
    if volume is not None:
        return ModelFacts.of_manifest(read_manifest(volume_path(volume)))
    assert source is not None, "ModelSpec has exactly one of source and volume"
    path = cache_path(model, source)
    if is_compiled(path):
        return ModelFacts.of_manifest(read_manifest(path))
    checkpoint = source.local_path
    if checkpoint is None and not fetch:
        raise UsageError(
            f"{source.uri} is not on this machine, and a plan needs the sizes in it: add --fetch to fetch it "
            "(of an hf:// repository its config.json only), or run it once with `shoal run`"
        )
    facts = _described(model, source, checkpoint)
    return ModelFacts.of_sizes(
        facts.shape, facts.block_bytes, facts.precision, facts.group_size, zero_points=facts.zero_points
    )


def _described(model: ShardedModel, source: Source, checkpoint: Path | None) -> CheckpointFacts:
    """The checkpoint's sizes from its header, fetched if need be; of an hf:// source from its config.json."""
    from shoal_stage.compile import describe_checkpoint, describe_config, fetch_config, resolve_source
    from shoal_stage.compile.progress import shown

    precision, group_size = model.spec.precision, model.spec.group_size
    reference = source_reference(model, source)
    if reference.startswith("hf://") and not reference.endswith(".gguf"):
        return describe_config(fetch_config(reference, checkpoints_dir()), precision, group_size)
    if checkpoint is None:
        with shown() as report:
            checkpoint = resolve_source(reference, checkpoints_dir(), source.sha256, report).path
    return describe_checkpoint(checkpoint, precision, group_size, keep_stored=model.spec.keeps_stored)


def compile_source(
    reference: str,
    output: Path,
    options: CompileOptions,
    sha256: str | None,
) -> Path:
    """Fetch and compile a checkpoint, with a progress bar on stderr; goes on where an interrupted one stopped."""
    notes: list[str] = []
    progress().print(f"fetching {reference}")
    with progress().status("loading the compiler"):
        from shoal_stage.compile import compile_model, resolve_source
        from shoal_stage.compile.progress import shown
    with shown() as report:
        resolved = resolve_source(reference, checkpoints_dir(), sha256, report)
        progress().print(f"compiling {resolved.path.name} to {options.precision}: {output}")
        output.parent.mkdir(parents=True, exist_ok=True)
        directory = compile_model(resolved, output, options, report, notes.append)
    for note in notes:
        progress().print(f"note: {note}")
    return directory


def options_of(model: ShardedModel, name: str | None = None) -> CompileOptions:
    """How the ShardedModel wants its source compiled."""
    from shoal_stage.compile import CompileOptions

    spec = model.spec
    return CompileOptions(spec.precision, spec.group_size, name, spec.keeps_stored)


def with_options(model: ShardedModel, precision: Precision | None, group_size: int | None) -> ShardedModel:
    """The ShardedModel with the options of a command in place of what the manifest says.

    Its directory in the cache then is that of what is really compiled. Only INT4 has groups, so the manifest's group
    size does not go with another precision.
    """
    spec = model.spec
    wanted = precision or spec.precision
    groups = group_size or (spec.group_size if wanted is Precision.INT4 else None)
    return model.model_copy(update={"spec": spec.model_copy(update={"precision": wanted, "group_size": groups})})


def source_reference(model: ShardedModel, source: Source) -> str:
    """The source as the compiler takes it: an hf:// uri carries its revision after '@'."""
    revision = model.spec.model.revision
    if revision is None or not source.uri.startswith("hf://"):
        return source.uri
    organisation, repository, *file = source.uri.removeprefix("hf://").split("/", 2)
    return "/".join([f"hf://{organisation}/{repository}@{revision}", *file])


def volume_path(volume: Volume) -> Path:
    """Where the volume's model directory is on this machine; raises UsageError for kinds that a cluster has."""
    if volume.host_path is None:
        kind = "persistentVolumeClaim" if volume.persistent_volume_claim else "image"
        raise UsageError(
            f"spec.model.volume.{kind} exists in a cluster only: on one machine use volume.hostPath, or source"
        )
    return Path(volume.host_path.path) / volume.path


def cache_path(model: ShardedModel, source: Source) -> Path:
    """The directory in the cache that belongs to the source; it need not exist."""
    spec = model.spec
    facts: dict[str, object] = {
        "uri": source.uri,
        "sha256": source.sha256,
        "revision": spec.model.revision,
        "file": _file_state(source),
        "precision": spec.precision,
        "groupSize": spec.group_size,
    }
    if spec.keeps_stored:
        facts["keepsStored"] = True
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return models_dir() / f"{model.metadata.name}-{key}"


def is_compiled(path: Path) -> bool:
    """Whether there is a finished model directory; a compile gives it this name only when it is complete."""
    return (path / MANIFEST_FILE).is_file()


def _file_state(source: Source) -> list[object] | None:
    """Size and time of a local checkpoint, so that another file under the same path is compiled anew.

    With a digest in the manifest they do not matter: the digest tells the files apart.
    """
    path = source.local_path
    if path is None or source.sha256 is not None:
        return None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    try:
        return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    except FileNotFoundError:
        return None


def _open(path: Path, verify: bool) -> LocalModel:
    """Open a model directory. Its tokenizer files are always checked here, its blocks with `verify` only.

    Each stage compares the digests of its own blocks before it loads them, whatever was asked here.
    """
    manifest = read_manifest(path)
    blocks = manifest.files_of(0, len(manifest.blocks))
    verify_files(path, manifest.tokenizer + (blocks if verify else ()))
    return LocalModel(path, manifest)
