"""Programs of the test cluster end when they must, and say why when they should not have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testcluster import processes
from testcluster.processes import DeadlineMissed, Process, ProcessEnded, free_ports, wait_until

LIBRARY = Path(processes.__file__).parents[1]


def start(tmp_path: Path, script: str) -> Process:
    return Process.start("child", ["/bin/sh", "-c", script], log=tmp_path / "child.log")


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A child whose parent has gone may be a zombie until somebody reads its end.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_program_that_ended_is_reported_with_its_last_words(tmp_path):
    child = start(tmp_path, "echo no such flag >&2; exit 3")
    child.popen.wait(timeout=30)
    with pytest.raises(ProcessEnded, match=r"child ended with 3; .*child.log ends with:\nno such flag"):
        child.check_running()


def test_stop_asks_first(tmp_path):
    child = start(tmp_path, "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    wait_until(lambda: "up" in child.last_words(), what="the child", deadline_s=30)
    child.stop()
    assert child.popen.returncode == 0
    assert child.last_words() == "up\nasked"


def test_stop_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_STOP_S", 0.3)
    child = start(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done")
    wait_until(lambda: "up" in child.last_words(), what="the child", deadline_s=30)
    child.stop()
    assert child.popen.returncode == -signal.SIGKILL


def test_a_program_ends_with_the_tests_even_when_those_are_killed(tmp_path):
    script = (
        "import pathlib, sys, time\n"
        "from testcluster.processes import Process\n"
        "child = Process.start('child', ['/bin/sleep', '600'], log=pathlib.Path(sys.argv[1]))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        env={"PYTHONPATH": str(LIBRARY), "PATH": os.defpath},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert running(child)
        parent.kill()
    wait_until(lambda: not running(child), what="the end of the child", deadline_s=30)


def test_waiting_says_what_did_not_come():
    with pytest.raises(DeadlineMissed, match=r"rain: not within 0 s; the last value was ''"):
        wait_until(lambda: "", what="rain", deadline_s=0.1)


def test_free_ports_differ():
    ports = free_ports(20)
    assert len(set(ports)) == 20
