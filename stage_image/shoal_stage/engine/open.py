"""Opening an engine by its kind: the one place that knows which engines there are."""

from __future__ import annotations

from pathlib import Path

from shoal.manifest import Manifest
from shoal_stage.engine.chain import build_chain
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.paged import PagedEngine
from shoal_stage.engine.settings import EngineKind, EngineSettings
from shoal_stage.engine.stateful import StatefulEngine


def open_engine(
    kind: EngineKind, directory: Path, manifest: Manifest, start: int, end: int, settings: EngineSettings
) -> Engine:
    """Load blocks [start, end) of a model directory onto the device of `settings`.

    Raises UsageError, ManifestError or ResourceError, each a clear line.
    """
    chain = build_chain(directory, manifest, start, end)
    engine = PagedEngine if kind is EngineKind.PAGED else StatefulEngine
    return engine(chain, manifest.shape, settings)
