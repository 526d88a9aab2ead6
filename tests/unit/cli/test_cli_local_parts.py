"""The small parts of a local run: restart budget, run folders, last words, sizes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from shoal_cli.cache import cache_root
from shoal_cli.local.restarts import RestartBudget
from shoal_cli.local.rundir import last_words, prune, run_directory
from shoal_cli.terminal import bytes_text


def test_restarts_are_counted_within_a_window() -> None:
    budget = RestartBudget(limit=2, window=10.0)
    assert [budget.spend(now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert not budget.spend(9.9)
    assert budget.spend(10.0), "the first one is out of the window"
    assert not budget.spend(10.5)


def test_old_runs_are_pruned_and_living_ones_never(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / f"20260101T00000{number}-1"
        folder.mkdir()
        (folder / "lock").touch()
    with (tmp_path / "20260101T000000-1" / "lock").open("w") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        prune(tmp_path, keep=2)
    assert sorted(path.name[14:15] for path in tmp_path.iterdir()) == ["0", "4", "5"]


def test_a_folder_left_by_an_interrupted_removal_goes_too(tmp_path: Path) -> None:
    (tmp_path / "20260101T000000-1").mkdir()
    os.utime(tmp_path / "20260101T000000-1", (0, 0))
    prune(tmp_path, keep=0)
    assert not list(tmp_path.iterdir())


def test_a_run_s_folder_is_locked_while_it_lives(tmp_path: Path) -> None:
    with run_directory(tmp_path / "runs") as directory:
        prune(tmp_path / "runs", keep=0)
        assert directory.is_dir()
    prune(tmp_path / "runs", keep=0)
    assert not directory.exists()


LOGGED = "loading | failed: KeyError: 3"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ('loading\n{"event": "listening"}\nshoal_stage: error: no such device: GPU\nbye\n', "no such device: GPU"),
        ("loading\nerror: stage.bin is missing\n", "stage.bin is missing"),
        ('{"message": "loading"}\n{"message": "failed", "traceback": "Traceback\\n x\\nKeyError: 3"}\n', LOGGED),
        ("one\ntwo\n\nthree\nfour\n", "two | three | four"),
        ('Traceback\n  File "x"\nKeyError: error: 3\n{"event": "x"}\n', 'Traceback | File "x" | KeyError: error: 3'),
    ],
)
def test_last_words_prefer_the_process_s_own_error_line(tmp_path: Path, log: str, words: str) -> None:
    (tmp_path / "log").write_text(log)
    assert last_words(tmp_path / "log") == words


def test_last_words_of_a_log_that_was_never_written(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none") == ""


def test_sizes_are_written_in_binary_units() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1536, 3 * 2**30, 5 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
        "5.0 TiB",
    ]


def test_the_cache_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert cache_root() == Path("/var/cache/me/shoal")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/to/be/ignored")
    assert cache_root() == Path.home() / ".cache" / "shoal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "shoal"
