"""`shoal run`: a ShardedModel as processes of this machine, by the same manifest that a cluster gets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.plan.document import Device
from shoal_cli.local.launch import Engine

DEFAULT_HOST = "127.0.0.1"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    manifest: Annotated[Path, typer.Argument(help="YAML file with a ShardedModel.")],
    prompt: Annotated[str | None, typer.Option(help="Ask this, print the answer and its figures, and stop.")] = None,
    stages: Annotated[int | None, typer.Option(min=1, max=64, help="Cut into this many stages.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = DEFAULT_HOST,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the API; default: the manifest's, 0: any free one.")
    ] = None,
    device: Annotated[
        list[Device] | None, typer.Option(help="Use this device instead of spec.devices; may be repeated.")
    ] = None,
    engine: Annotated[Engine | None, typer.Option(help="How stages keep keys and values; default: paged.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compute in F32: the same tokens for every cut.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer to --prompt, in tokens.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Of the answer to --prompt.")] = 0.0,
    verify: Annotated[bool, typer.Option("--verify", help="Check every file of the model before it is used.")] = False,
) -> None:
    """Run a ShardedModel on this machine: compile it once, start its stages and its router, serve until Ctrl-C."""
    from shoal.resource import load_sharded_model
    from shoal_cli.asking import Question
    from shoal_cli.local.adapt import check_exposure, for_this_machine, without_effect
    from shoal_cli.local.models import find_or_compile, find_or_compile_draft
    from shoal_cli.local.serve import serve
    from shoal_cli.ports import check_port
    from shoal_cli.terminal import progress

    asked = load_sharded_model(manifest)
    wanted = for_this_machine(asked, stages=stages, exact=exact, devices=device or ())
    check_exposure(asked, host)
    for line in without_effect(asked):
        progress().print(line)
    if port is None:
        port = 0 if prompt is not None else wanted.spec.router.service.port
    check_port(host, port)
    model = find_or_compile(wanted, verify=verify)
    draft = find_or_compile_draft(wanted, model, verify=verify)
    question = None
    if prompt is not None:
        question = Question(prompt, wanted.served_names[0], max_tokens, temperature, chat=model.chat)
    serve(wanted, model, draft, host=host, port=port, engine=engine, question=question)
