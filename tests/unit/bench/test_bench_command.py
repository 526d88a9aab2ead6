"""`python -m bench`: what only one benchmark understands is refused for the others."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from bench.__main__ import main


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(main)
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("option", [("--table", "wan"), ("--into", ".")])
def test_options_of_the_papers_tables_are_refused_elsewhere(run, option):
    result = run("hop", *option)
    assert result.exit_code == 2
    assert "bench paper" in result.output


def test_an_unknown_table_is_one_line_and_no_traceback(run):
    result = run("paper", "--quick", "--table", "no")
    assert result.exit_code == 2
    assert result.output.startswith("bench: error: the paper has no table 'no' here; there are shards, ")
