"""The cache of built programs, with a Go that is a shell script: what is built when, and what is said when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testcluster import binaries
from testcluster.binaries import BinarySet, BuildFailed, GoIsMissing

LIBRARY = Path(binaries.__file__).parents[1]

# Writes what it is asked for as the real one does, and keeps a line for each call.
FAKE_GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
for last; do
  case "$1" in -o) out="$2" ;; esac
  shift 2>/dev/null
done
echo program > "${out}tool"
"""
BROKEN_GO = """#!/bin/sh
echo "compile: out of patience" >&2
exit 1
"""


@pytest.fixture
def module(tmp_path: Path) -> BinarySet:
    """A set of one program."""
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.test/tool\n")
    (folder / "go.sum").write_text("")
    return BinarySet(name="tool", module=folder, packages={"program": "example.test/tool"})


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `go` on the PATH; the test writes what it does. Its calls are kept in a file beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    monkeypatch.setenv("GO_CALLS", str(folder / "calls"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder / "go"


def install(go: Path, text: str) -> None:
    go.write_text(text)
    go.chmod(0o755)


def calls(go: Path) -> int:
    record = go.parent / "calls"
    return len(record.read_text().splitlines()) if record.exists() else 0


def test_what_is_built_once_is_there_the_next_time(module, go):
    install(go, FAKE_GO)
    folder = binaries.ensure(module)
    assert (folder / "program").read_text() == "program\n"
    assert binaries.ensure(module) == folder
    assert calls(go) == 1
    assert [file.name for file in folder.iterdir() if file.name.startswith(".")] == []


def test_remains_of_a_killed_build_are_removed(module, go):
    install(go, FAKE_GO)
    (module.directory() / ".building-killed").mkdir(parents=True)
    folder = binaries.ensure(module)
    assert sorted(file.name for file in folder.iterdir()) == ["lock", "program"]


def test_built_programs_need_no_go(module, go):
    install(go, FAKE_GO)
    folder = binaries.ensure(module)
    go.unlink()
    assert binaries.ensure(module) == folder


def test_other_sums_are_other_programs(module, go):
    install(go, FAKE_GO)
    before = binaries.ensure(module)
    (module.module / "go.sum").write_text("example.test/library v1.0.0 h1:x\n")
    assert binaries.ensure(module) != before
    assert calls(go) == 2


def test_runs_at_the_same_time_build_once(module, go):
    install(go, FAKE_GO.replace("#!/bin/sh", "#!/bin/sh\nsleep 0.3", 1))
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: binaries.ensure(module), range(4)))
    assert len(folders) == 1
    assert calls(go) == 1


def test_without_go_it_says_what_to_install(module, go):
    with pytest.raises(GoIsMissing, match=r"no `go` on the PATH to build program with: install Go"):
        binaries.ensure(module)


def test_a_build_that_fails_shows_what_go_said_and_leaves_nothing(module, go):
    install(go, BROKEN_GO)
    with pytest.raises(BuildFailed, match="out of patience"):
        binaries.ensure(module)
    assert binaries.missing(module) == ("program",)
    assert [file.name for file in module.directory().iterdir()] == ["lock"]


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_without_go_cluster_tests_are_skipped_but_fail_in_ci(tmp_path, ci, outcome):
    (tmp_path / "test_it.py").write_text("def test_it(control_plane): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cluster: x\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-ra",
            "-p",
            "testcluster.plugin",
            "-p",
            "no:cacheprovider",
            "test_it.py",
        ],
        cwd=tmp_path,
        env={
            "PATH": str(tmp_path),
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PYTHONPATH": str(LIBRARY),
            "CI": ci,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert outcome in done.stdout, done.stdout + done.stderr
    assert "no `go` on the PATH to build etcd" in done.stdout
