"""Sizes of a source's blocks before it is compiled: what says how much memory compiling takes.

Of a repository its config.json is enough. A file says its sizes itself and has to be fetched first; it stays in the
cache, where the compiler finds it.
"""

from __future__ import annotations

from pathlib import Path

from shoal.manifest import Precision
from shoal.plan.facts import ModelFacts
from shoal_stage.compile.estimate import describe_checkpoint, describe_config
from shoal_stage.compile.fetch import fetch_config, resolve_source
from shoal_stage.compile.progress import OnProgress, silent


def sizes_of_source(
    source: str,
    cache: Path,
    precision: Precision,
    group_size: int | None = None,
    sha256: str | None = None,
    *,
    keep_stored: bool = False,
    progress: OnProgress = silent,
) -> ModelFacts:
    """The facts of the model that the source would become. Raises CheckpointError, UsageError, ResourceError,
    IntegrityError."""
    if source.startswith("hf://") and not source.endswith(".gguf"):
        found = describe_config(fetch_config(source, cache), precision, group_size)
    else:
        path = resolve_source(source, cache, sha256, progress).path
        found = describe_checkpoint(path, precision, group_size, keep_stored=keep_stored)
    return ModelFacts.of_sizes(
        found.shape, found.block_bytes, found.precision, found.group_size, zero_points=found.zero_points
    )
