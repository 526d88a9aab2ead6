"""`shoal plan`: what would run where, and why, without starting or compiling anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.plan import Plan


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    manifest: Annotated[Path, typer.Argument(help="YAML file with a ShardedModel.")],
    nodes: Annotated[
        Path | None, typer.Option(help="YAML file with the PCs to plan for; default: this machine.")
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Plan for the PCs of the kubeconfig's cluster, as its operator would.")
    ] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch a checkpoint that is not on this machine yet.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print plan.json instead of tables.")] = False,
) -> None:
    """Show the stages that a ShardedModel would get: blocks, every term of their memory, and the reasons."""
    from shoal.errors import UsageError
    from shoal.plan import make_plan
    from shoal.plan.standby import with_standbys
    from shoal.resource import load_nodes, load_sharded_model
    from shoal.resource.planning import node_facts_of, plan_spec_of
    from shoal_cli.cluster import plan_on, with_cluster
    from shoal_cli.local.adapt import for_this_machine, local_plan, missing_standbys, without_effect
    from shoal_cli.local.machine import this_machine
    from shoal_cli.local.models import model_facts
    from shoal_cli.terminal import progress

    model = load_sharded_model(manifest)
    if cluster and nodes is not None:
        raise UsageError("give --nodes or --cluster, not both")
    if cluster:
        facts = model_facts(model, fetch=fetch)
        _show(with_cluster(lambda there: plan_on(there, model, facts)), model.metadata.name, json_output)
        return
    if nodes is not None:
        places = node_facts_of(load_nodes(nodes))
        sizes, wanted = model_facts(model, fetch=fetch), plan_spec_of(model.spec)
        made = with_standbys(make_plan(sizes, places, wanted), sizes, places, wanted)
    else:
        for line in without_effect(model):
            progress().print(line)
        model = for_this_machine(model)
        made = local_plan(model, model_facts(model, fetch=fetch), this_machine())
        if line := missing_standbys(model, made):
            progress().print(line)
    _show(made, model.metadata.name, json_output)


def _show(made: Plan, name: str, json_output: bool) -> None:
    from shoal_cli.tables import print_plan

    if json_output:
        typer.echo(made.model_dump_json(by_alias=True, indent=2))
    else:
        print_plan(made, name)
