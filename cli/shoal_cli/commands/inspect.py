"""`shoal inspect`: what a model directory or a checkpoint is, without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    path: Annotated[Path, typer.Argument(help="A model directory, a GGUF file or a Hugging Face directory.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file of a model directory and compare its digest.")
    ] = False,
    digest: Annotated[
        bool,
        typer.Option("--digest", help="Read a whole checkpoint and show its digest, for spec.model.source.sha256."),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what a model directory or a checkpoint holds."""
    import json

    from shoal.errors import UsageError
    from shoal.manifest import MANIFEST_FILE
    from shoal_cli.inspection import checkpoint_facts, directory_facts, in_words
    from shoal_cli.tables import facts_table
    from shoal_cli.terminal import results

    if (path / MANIFEST_FILE).exists():
        facts = directory_facts(path, verify=verify)
    elif verify:
        raise UsageError(f"{path} is no model directory: a checkpoint has no digests to verify, --digest shows its own")
    else:
        facts = checkpoint_facts(path, digest=digest)
    if json_output:
        typer.echo(json.dumps(facts, indent=2))
    else:
        results().print(facts_table(in_words(facts)))
