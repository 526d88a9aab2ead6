"""`shoal status`: how the ShardedModels of a cluster are, and why one is not ready."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    name: Annotated[str | None, typer.Argument(help="A ShardedModel; default: all of them, one a line.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace; default: all of them.")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print the objects instead of tables.")] = False,
) -> None:
    """Show the ShardedModels of the kubeconfig's cluster: whether they serve, what they hold, and what is missing."""
    from shoal_cli.cluster import statuses, with_cluster
    from shoal_cli.tables import models_table, print_model
    from shoal_cli.terminal import results

    found = with_cluster(lambda cluster: statuses(cluster, namespace, name))
    if json_output:
        typer.echo(json.dumps(found, indent=2))
    elif name is None:
        results().print(models_table(found))
    else:
        print_model(_one(found))


def _one(found: list[dict[str, Any]]) -> dict[str, Any]:
    (body,) = found
    return body
