"""Writes docs/reference/cli.md from the commands themselves: `python -m shoal_cli.reference docs/reference/cli.md`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer.main
from typer.core import TyperGroup

from shoal_cli import main
from shoal_cli.app import app

WIDTH = 100


def reference() -> str:
    """The page: every command's help as `shoal COMMAND --help` prints it, then the exit codes."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    context = root.make_context("shoal", [], resilient_parsing=True, terminal_width=WIDTH)
    parts = [
        "# The `shoal` command",
        "Generated from the commands by `make generate`; do not edit.",
        app.info.help or "",
    ]
    for name, command in root.commands.items():
        own = command.make_context(name, [], parent=context, resilient_parsing=True, terminal_width=WIDTH)
        parts += [f"## shoal {name}", f"```text\n{command.get_help(own).rstrip()}\n```"]
    parts += ["## Exit codes", f"```text\n{_exit_codes()}\n```"]
    return "\n\n".join(parts) + "\n"


def _exit_codes() -> str:
    """The table in main's docstring: the lines that are indented."""
    lines = (main.__doc__ or "").splitlines()
    return "\n".join(line.strip() for line in lines if line.startswith("    "))


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(reference(), encoding="utf-8")
