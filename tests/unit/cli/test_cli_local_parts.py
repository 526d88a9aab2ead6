"""The small parts of a local run: restarts, standbys, run folders, last words, sizes."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path

import pytest

from shoal.plan.document import Device, MemorySum, PipelinePlan, Plan, StagePlan, Standby
from shoal_cli.cache import cache_root
from shoal_cli.local.restarts import ATTEMPTS, LONGEST_PAUSE_S, STANDBY_PAUSE_S, STEADY_S, Restarts
from shoal_cli.local.rundir import last_words, prune, run_directory
from shoal_cli.local.stages import Stages
from shoal_cli.terminal import bytes_text


def test_a_process_that_comes_up_is_started_again_for_ever_with_growing_pauses() -> None:
    restarts, pauses = Restarts(), []
    for now in range(12):
        restarts.ready(now)
        pauses.append(restarts.pause(now + 0.5))
    assert pauses[:5] == [0, 0.5, 1, 2, 4]
    assert pauses[-1] == LONGEST_PAUSE_S
    restarts.ready(100)
    assert restarts.pause(100 + STEADY_S) == 0, "it was well for a while"


def test_a_process_that_is_replaced_is_in_no_hurry() -> None:
    restarts = Restarts()
    restarts.ready(0)
    assert restarts.pause(1, replaced=True) == STANDBY_PAUSE_S
    restarts.ready(2)
    assert restarts.pause(3) == 0.5


def test_a_process_that_does_not_come_up_is_given_up() -> None:
    restarts = Restarts()
    restarts.ready(0)
    assert restarts.pause(1) == 0
    tried = [restarts.pause(2) for _ in range(ATTEMPTS)]
    assert tried[-1] is None
    assert None not in tried[:-1]


def test_a_process_that_came_up_in_between_begins_to_count_anew() -> None:
    restarts = Restarts()
    for _ in range(3 * ATTEMPTS):
        assert restarts.pause(0) is not None
        restarts.ready(1)
        assert restarts.pause(2) is not None


SUM = MemorySum(weights=1, load_peak=0, kv=1, runtime=1)


def seated(tmp_path: Path, standbys: tuple[int, ...]) -> Stages:
    made = [
        StagePlan(index=n, node=f"local-{n}", device=Device.CPU, block_start=n, block_end=n + 1, memory=SUM)
        for n in range(2)
    ]
    extra = tuple(
        Standby(pipeline=0, stage=made[index].model_copy(update={"node": f"local-{2 + number}"}))
        for number, index in enumerate(standbys)
    )
    plan = Plan(pipelines=(PipelinePlan(index=0, stages=tuple(made)),), standbys=extra)
    stages = Stages(plan, tmp_path)
    for number, seat in enumerate(stages):
        seat.stage = seat.stage.model_copy(update={"address": f"here:{number}"})
    stages.write()
    return stages


def served(stages: Stages) -> list[str]:
    plan = Plan.model_validate_json(stages.path.read_bytes())
    assert {stage.address for stage in plan.everywhere} == {seat.stage.address for seat in stages}
    return [stage.address for stage in plan.pipelines[0].stages]


def test_a_standby_that_is_ready_takes_the_place_and_who_comes_back_stands_by(tmp_path: Path) -> None:
    stages = seated(tmp_path, (1,))
    first, second, standby = stages
    for seat in (first, second, standby):
        stages.back(seat)
    assert served(stages) == ["here:0", "here:1"]
    assert stages.lost(second) is standby
    assert served(stages) == ["here:0", "here:2"]
    assert stages.lost(second) is None, "it was told to stop, and now it has ended"
    stages.back(second)
    assert served(stages) == ["here:0", "here:2"], "nothing moves without need"
    assert not stages.serves(second)
    assert stages.lost(standby) is second
    assert served(stages) == ["here:0", "here:1"]


def test_a_standby_that_is_late_takes_the_place_when_it_is_ready(tmp_path: Path) -> None:
    stages = seated(tmp_path, (1,))
    first, second, standby = stages
    stages.back(first)
    stages.back(second)
    assert stages.lost(second) is None
    assert served(stages) == ["here:0", "here:1"]
    stages.back(standby)
    assert served(stages) == ["here:0", "here:2"]


def test_a_standby_serves_its_own_stage_only(tmp_path: Path) -> None:
    stages = seated(tmp_path, (1,))
    for seat in stages:
        stages.back(seat)
    first = next(iter(stages))
    assert stages.lost(first) is None
    assert served(stages) == ["here:0", "here:1"]


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


def test_a_plan_that_cannot_be_written_is_written_when_it_can(tmp_path: Path) -> None:
    """The disk is full at the moment at which a standby must take over: that much is remembered."""
    stages = seated(tmp_path, (1,))
    first, second, standby = stages
    for seat in (first, second, standby):
        stages.back(seat)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assert stages.lost(second) is standby
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert served_by(stages) == ["here:0", "here:1"], "the last plan is still whole"
    assert "plan.json cannot be written: File too large" in str(stages.unwritten)
    stages.settle()
    assert stages.unwritten is None
    assert served(stages) == ["here:0", "here:2"]


def served_by(stages: Stages) -> list[str]:
    plan = Plan.model_validate_json(stages.path.read_bytes())
    return [stage.address for stage in plan.pipelines[0].stages]
