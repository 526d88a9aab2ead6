"""What a stage says of itself before its engine is loaded: from the manifest and the installed versions."""

from __future__ import annotations

from shoal import __version__
from shoal.manifest import Manifest
from shoal.wire.messages import StageDescription, StageState


def describe_stage(
    manifest: Manifest,
    start: int,
    end: int,
    *,
    engine: str,
    device: str,
    exact: bool,
    max_frame_bytes: int,
    versions: dict[str, str] | None = None,
) -> StageDescription:
    """The description of a stage that is about to load blocks [start, end)."""
    return StageDescription(
        model_digest=manifest.digest,
        block_start=start,
        block_end=end,
        blocks_in_model=len(manifest.blocks),
        state=StageState.LOADING,
        epoch=0,
        engine=engine,
        device=device,
        execution_devices=(),
        exact=exact,
        hidden_size=manifest.shape.hidden_size,
        vocab_size=manifest.shape.vocab_size,
        max_frame_bytes=max_frame_bytes,
        versions={"shoal": __version__, **(versions or {})},
        detail="loading the model",
    )
