"""Opening an engine by its kind: the one place that knows which engines there are."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from shoal.errors import UsageError
from shoal.manifest import Manifest
from shoal.plan.document import Device
from shoal_stage.engine.chain import build_chain
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.merge import merge_small_products
from shoal_stage.engine.paged import PagedEngine
from shoal_stage.engine.same_bits import SameBits
from shoal_stage.engine.selftest import check_against, check_memory
from shoal_stage.engine.settings import BLOCK_SIZE, EngineKind, EngineSettings
from shoal_stage.engine.stateful import StatefulEngine

_SAMPLE_BLOCKS = 2


def open_engine(
    kind: EngineKind, directory: Path, manifest: Manifest, start: int, end: int, settings: EngineSettings
) -> Engine:
    """Load blocks [start, end) of a model directory onto the device of `settings`, and test what was loaded.

    Raises UsageError, ManifestError or ResourceError, each a clear line.
    """
    if settings.device is Device.NPU:
        raise UsageError("no engine of this version runs on the NPU, which takes fixed shapes only: use the GPU or CPU")
    if settings.device is not Device.CPU and manifest.keeps_stored:
        raise UsageError(
            f"{directory} keeps its checkpoint's own 4-bit numbers, in a form that only CPUs are known to take: "
            "compile it for the GPU, with a group size or without --keep-stored"
        )
    if settings.device is not Device.CPU:
        _compare_with_cpu(kind, directory, manifest, start, min(end, start + _SAMPLE_BLOCKS), settings)
    engine = _load(kind, directory, manifest, start, end, settings)
    check_memory(engine, first=start == 0)
    return engine


def _load(
    kind: EngineKind, directory: Path, manifest: Manifest, start: int, end: int, settings: EngineSettings
) -> Engine:
    chain = build_chain(directory, manifest, start, end)
    if settings.device is Device.CPU:
        merge_small_products(chain.model)
    if kind is EngineKind.STATEFUL:
        return StatefulEngine(chain, manifest.shape, settings)
    if settings.exact and settings.device is Device.CPU:
        return SameBits(PagedEngine(chain, manifest.shape, settings, spare_pages=1))
    return PagedEngine(chain, manifest.shape, settings)


def _compare_with_cpu(
    kind: EngineKind, directory: Path, manifest: Manifest, start: int, end: int, settings: EngineSettings
) -> None:
    """Run the stage's first blocks on the device and on the CPU: few, so that a model that just fits still does."""
    small = replace(settings, sequences=1, max_context=2 * BLOCK_SIZE, kv_blocks=2)
    exact = replace(small, device=Device.CPU, exact=True, kv_precision=None)
    with (
        closing(_load(kind, directory, manifest, start, end, small)) as tested,
        closing(_load(kind, directory, manifest, start, end, exact)) as reference,
    ):
        check_against(tested, reference, first=start == 0)
