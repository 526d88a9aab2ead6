"""The command line's commands, in the order in which `shoal --help` lists them."""

from __future__ import annotations

import typer

from shoal_cli.commands import bench, chat, compile, doctor, gateway, inspect, plan, run, status, version

app = typer.Typer(
    name="shoal",
    help="Run a large language model cut by layers into stages, on this machine or over the PCs of a cluster.",
    pretty_exceptions_enable=False,
    # Plain help: rich's takes half a second to load.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, compile, plan, status, chat, bench, doctor, gateway, inspect, version):
    command.register(app)
