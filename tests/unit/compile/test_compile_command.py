"""`python -m shoal_stage compile` as a process: one line on success, one line and an exit code on failure."""

from __future__ import annotations

import errno
import io

import pytest

from shoal.manifest import read_manifest
from shoal_stage.__main__ import main
from shoal_stage.compile.progress import Report, shown


def test_it_compiles_and_prints_the_directory(make_gguf, tmp_path, capsys):
    output = tmp_path / "model"
    command = ["compile", str(make_gguf().path), "--output", str(output), "--precision", "INT8", "--name", "tiny"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out == f"{output}\n"
    assert "compiling: " in err
    assert "Traceback" not in err
    manifest = read_manifest(output)
    assert (manifest.name, manifest.precision) == ("tiny", "INT8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["compile", "/does/not/exist.gguf", "--output", "/tmp/never"],
            2,
            "error: /does/not/exist.gguf does not exist",
        ),
        ([], 2, "usage: python -m shoal_stage"),
        (["launch"], 2, "usage: python -m shoal_stage"),
    ],
)
def test_errors_are_one_line(capsys, arguments, code, message):
    assert main(arguments) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_what_the_disk_refuses_is_one_line(capsys, monkeypatch):
    def refuse(arguments):
        raise PermissionError(errno.EACCES, "Permission denied", "/models/tokenizer.json")

    monkeypatch.setattr("shoal_stage.compile.command.compile_command", refuse)
    assert main(["compile", "model.gguf"]) == 5
    assert capsys.readouterr().err == "error: /models/tokenizer.json: Permission denied\n"


def test_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    with shown(stream) as report:
        for done in range(0, 101, 5):
            report(Report(f"layer-{done:03d}", done, 100))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[5] == "compiling: layer-050, 50 % of 0 MB"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_a_bar_on_a_terminal_names_the_block(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with shown(stream) as report:
        report(Report("layer-007", 50, 100))
    assert "layer-007" in stream.getvalue()
    assert "50%" in stream.getvalue()
