"""Errors become one line and an exit code; nothing else reaches the terminal."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import typer

from shoal.errors import (
    CheckpointError,
    IntegrityError,
    ManifestError,
    PlanError,
    ResourceError,
    ShoalError,
    StageError,
)
from shoal_cli import app as application
from shoal_cli.main import main


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch):
    """A command that raises what the test wants."""

    def use(error: BaseException) -> None:
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def fail() -> None:
            raise error

        app.callback()(lambda: None)

        monkeypatch.setattr(application, "app", app)

    return use


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "shoal"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ShoalError("what\n  and where"), 1),
        (ManifestError("what and where"), 2),
        (CheckpointError("what and where"), 2),
        (PlanError("what and where"), 3),
        (IntegrityError("what and where"), 4),
        (ResourceError("what and where"), 5),
        (StageError("what and where"), 6),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(raising, capfd: pytest.CaptureFixture[str], error, code: int) -> None:
    raising(error)
    assert main(["fail"]) == code
    assert capfd.readouterr() == ("", "shoal: error: what and where\n")


def test_a_defect_leaves_a_traceback_in_a_file_and_one_line_that_names_it(raising, capfd, cache: Path) -> None:
    raising(ZeroDivisionError("by nought"))
    assert main(["fail"]) == 1
    out, err = capfd.readouterr()
    (log,) = (cache / "crashes").iterdir()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("shoal: error: unexpected ZeroDivisionError: by nought")
    assert str(log) in err
    assert "Traceback (most recent call last)" in log.read_text()


def test_a_defect_is_reported_even_where_no_file_can_be_written(
    raising, capfd, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    raising(ZeroDivisionError("by nought"))
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("shoal_cli.crash.gettempdir", lambda: str(blocked))
    assert main(["fail"]) == 1
    assert "its traceback could not be written" in capfd.readouterr().err


def test_a_full_disk_is_not_called_a_defect(raising, capfd) -> None:
    raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/models/block.bin"))
    assert main(["fail"]) == 5
    assert capfd.readouterr().err == "shoal: error: /models/block.bin: No space left on device\n"


def test_ctrl_c_is_quiet_and_130(raising, capfd) -> None:
    raising(KeyboardInterrupt())
    assert main(["fail"]) == 130
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["nonsense"], ["chat", "--nonsense"], ["chat", "--max-tokens", "none"]])
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments: list[str], capfd) -> None:
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("shoal: error: ")
    assert err.count("\n") == 1


def test_without_arguments_there_is_help(capfd) -> None:
    assert main([]) == 0
    assert "Usage: shoal [OPTIONS] COMMAND" in capfd.readouterr().out
