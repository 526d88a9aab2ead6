"""A log that is kept short under the hands of the process that writes it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from shoal_cli.local.logfile import earlier, keep_short
from shoal_cli.local.rundir import last_words


def test_what_is_too_long_is_put_aside_and_the_writer_goes_on_at_the_beginning(tmp_path: Path) -> None:
    log = tmp_path / "stage-0.log"
    with log.open("ab", buffering=0) as writer:
        for number in range(5):
            writer.write(f"line {number}\n".encode() * 10)
            keep_short(log, longest=100)
        assert (log.read_text(), earlier(log).read_text()) == ("line 4\n" * 10, "line 2\n" * 10 + "line 3\n" * 10)
        assert last_words(log) == "line 4 | line 4 | line 4"
        writer.write(b"line 5\n" * 10)
        keep_short(log, longest=100)
    assert log.read_bytes() == b""
    assert last_words(log) == "line 5 | line 5 | line 5", "what was said last may just have been put aside"
    assert {path.name for path in tmp_path.iterdir()} == {"stage-0.log", "stage-0.log.1"}


def test_a_short_log_and_one_that_is_not_there_are_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    keep_short(log)
    assert list(tmp_path.iterdir()) == []
    log.write_text("short\n")
    keep_short(log)
    assert log.read_text() == "short\n"
    assert not earlier(log).exists()


def test_on_a_full_disk_the_log_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text("much\n" * 100)
    earlier(log).write_text("older\n")

    def full(source: Path, target: Path) -> None:
        target.write_text("half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    keep_short(log, longest=100)
    assert log.read_bytes() == b""
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
