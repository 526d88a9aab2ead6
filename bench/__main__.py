"""`python -m bench NAME [--quick] [--json FILE]`, `python -m bench --list`.

`python -m bench paper` takes `--table NAME` (any number of times) and `--into DIR`, too.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.report import Report, show, write
from shoal.errors import ShoalError

# Name on the command line -> module. Modules import heavy peers, so they are loaded only when they run.
BENCHES = {
    "batching": "bench.batching",
    "exactness": "bench.exactness",
    "export": "bench.export",
    "grammar": "bench.grammar",
    "hop": "bench.hop",
    "operator": "bench.operator",
    "overhead": "bench.overhead",
    "paper": "bench.paper",
    "prefill": "bench.prefill",
    "prefix": "bench.prefix",
    "recovery": "bench.recovery",
    "rewind": "bench.rewind",
    "single-node": "bench.single_node",
    "soak": "bench.soak",
    "speculation": "bench.speculation",
    "two-nodes": "bench.two_nodes",
    "wan": "bench.wan",
}


def main(
    name: Annotated[str | None, typer.Argument(help="which benchmark; --list names them")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a short form: shows that it runs, not a figure")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures to this file")] = None,
    tables: Annotated[list[str] | None, typer.Option("--table", help="of the paper's tables this one only")] = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="the folder of the paper's page; docs unless --quick")
    ] = None,
    list_names: Annotated[bool, typer.Option("--list", help="name the benchmarks and end")] = False,
) -> None:
    """Run one benchmark, print its table and write its figures."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    if list_names or name is None:
        for key, module in BENCHES.items():
            console.print(f"{key:14} {importlib.import_module(module).TITLE}")
        return
    if name not in BENCHES:
        raise typer.BadParameter(f"there is no benchmark {name!r}; there are {', '.join(BENCHES)}")
    if (tables or into) and name != "paper":
        raise typer.BadParameter("--table and --into are options of `bench paper`")
    more = {"names": tables or (), "into": into} if name == "paper" else {}
    load = os.getloadavg()[0]
    try:
        report: Report = importlib.import_module(BENCHES[name]).run(quick=quick, **more)
    except ShoalError as error:
        console.print(f"bench: error: {error}", style="red")
        raise typer.Exit(error.exit_code) from None
    if load > 0.5:
        report.notes.append(f"the machine was not quiet when this began: load {load:.1f}")
    show(name, report, console)
    if json_file is not None:
        write(json_file, name, report)


if __name__ == "__main__":
    typer.run(main)
