"""SmolLM2-135M-Instruct as a model directory: compiled once into the user's cache, and found there by every test."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from shoal.manifest import Precision
from shoal.resource import load_sharded_model
from shoal_cli.cache import checkpoints_dir, models_dir
from shoal_stage.compile import CompileOptions, compile_model, resolve_source

EXAMPLE = Path(__file__).parents[3] / "examples" / "smollm2.yaml"


@cache
def compiled_smollm2(precision: Precision = Precision.INT4) -> Path:
    """Its directory in this precision; a minute the first time."""
    source = load_sharded_model(EXAMPLE).spec.model.source
    assert source is not None
    checkpoint = resolve_source(source.uri, checkpoints_dir(), source.sha256)
    return compile_model(checkpoint, models_dir() / f"test-smollm2-{precision.lower()}", CompileOptions(precision))
