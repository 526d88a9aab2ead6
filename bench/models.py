"""The model that benchmarks run: the one of examples/smollm2.yaml, compiled once into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.manifest import Precision
from shoal.resource import load_sharded_model
from shoal_cli.cache import checkpoints_dir, models_dir
from shoal_stage.compile import CompileOptions, compile_model, resolve_source
from shoal_stage.compile.compiler import FORMAT

_EXAMPLE = Path(__file__).parents[1] / "examples" / "smollm2.yaml"


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model directory and the checkpoint that it was made of."""

    directory: Path
    checkpoint: Path


def smollm2(precision: Precision = Precision.INT4, *, keep_stored: bool = False) -> BenchModel:
    """The model in `precision`, with `keep_stored` in its file's own 4-bit numbers. Raises what fetching and compiling
    raise."""
    source = load_sharded_model(_EXAMPLE).spec.model.source
    assert source is not None, "the example names a source"
    resolved = resolve_source(source.uri, checkpoints_dir(), source.sha256)
    # A directory that is there is never compiled again; one of an older compiler must not be what is measured.
    kind = f"{precision.lower()}{'-stored' if keep_stored else ''}"
    directory = models_dir() / f"bench-smollm2-{kind}-format{FORMAT}"
    options = CompileOptions(precision=precision, name="smollm2", keep_stored=keep_stored)
    compile_model(resolved, directory, options)
    return BenchModel(directory, resolved.path)


def bench_cache() -> Path:
    """Where benchmarks keep what peers need: nothing in it is ever the only copy."""
    path = models_dir().parent / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path
