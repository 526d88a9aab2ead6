"""What survives an interrupted compile, what is done anew, and what a full disk or a second compile leaves behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import ManifestError, ResourceError, UsageError
from shoal.manifest import Precision, read_manifest, verify_files
from shoal_stage.compile import CompileOptions, compile_model, compiler
from shoal_stage.compile.workplace import Workplace

F32 = CompileOptions(Precision.F32)


class Interrupted(Exception):
    """Stands for whatever ends a compile."""


def interrupt_at(name):
    """A progress callback that ends the compile when it comes to that block."""

    def report(progress):
        if progress.what == name:
            raise Interrupted

    return report


def written(monkeypatch):
    """The names of the blocks that are written from here on."""
    names = []
    original = Workplace.write_block

    def note(self, model, name, kind):
        names.append(name)
        return original(self, model, name, kind)

    monkeypatch.setattr(Workplace, "write_block", note)
    return names


@pytest.fixture(scope="module", autouse=True)
def unchecked():
    """What a layer's graph becomes on this CPU is the families' tests'; here it would be half of every compile."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiler, "check_layer", lambda model: None)
        yield


@pytest.fixture(scope="module")
def interrupted(make_hf_in, tmp_path_factory):
    """A folder with a checkpoint whose compile stopped before its second layer."""
    folder = tmp_path_factory.mktemp("interrupted")
    tiny = make_hf_in(folder, "llama")
    with pytest.raises(Interrupted):
        compile_model(tiny.path, folder / "model", F32, interrupt_at("layer-001"))
    assert not (folder / "model").exists()
    return folder


@pytest.fixture
def half(interrupted, tmp_path):
    """Such a checkpoint and where its compile goes on, of the test's own."""
    folder = shutil.copytree(interrupted, tmp_path / "half")
    return folder / "hf", folder / "model"


def test_an_interrupted_compile_goes_on_at_the_first_missing_block(half, monkeypatch):
    checkpoint, destination = half
    names = written(monkeypatch)
    compile_model(checkpoint, destination, F32)
    assert names == ["layer-001", "head"]
    manifest = read_manifest(destination)
    verify_files(destination, manifest.files_of(0, 4) + manifest.tokenizer)
    assert sorted(path.name for path in destination.iterdir()) == ["blocks", "manifest.json", "tokenizer"]
    assert len(list((destination / "blocks").iterdir())) == 8
    assert not destination.with_name("model.partial").exists()


def test_a_damaged_block_is_written_again(half, monkeypatch):
    checkpoint, destination = half
    block = destination.with_name("model.partial") / "blocks" / "layer-000.bin"
    raw = bytearray(block.read_bytes())
    raw[100] ^= 1
    block.write_bytes(raw)
    names = written(monkeypatch)
    compile_model(checkpoint, destination, F32)
    assert names == ["layer-000", "layer-001", "head"]
    manifest = read_manifest(destination)
    verify_files(destination, manifest.files_of(0, 4))


@pytest.mark.parametrize("change", ["options", "checkpoint"])
def test_other_inputs_start_anew(half, monkeypatch, change):
    checkpoint, destination = half
    options = CompileOptions(Precision.F16) if change == "options" else F32
    if change == "checkpoint":
        weights = checkpoint / "model.safetensors"
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(raw)
    names = written(monkeypatch)
    compile_model(checkpoint, destination, options)
    assert names == ["embed", "layer-000", "layer-001", "head"]


def test_a_broken_journal_starts_anew(half, monkeypatch):
    checkpoint, destination = half
    (destination.with_name("model.partial") / "journal.json").write_text("{")
    names = written(monkeypatch)
    compile_model(checkpoint, destination, F32)
    assert len(names) == 4


KILLED = """
import os, signal, sys
from pathlib import Path
from shoal.manifest import Precision
from shoal_stage.compile import CompileOptions, compile_model
from shoal_stage.compile import workplace
def killed(path):
    if path.name == "unfinished-layer-001.bin":
        os.kill(os.getpid(), signal.SIGKILL)
workplace.sync_file = killed
compile_model(Path(sys.argv[1]), Path(sys.argv[2]), CompileOptions(Precision.F32))
"""


def test_kill_minus_nine_in_the_middle_of_a_block(make_hf, tmp_path, monkeypatch):
    tiny, destination = make_hf("llama"), tmp_path / "model"
    done = subprocess.run([sys.executable, "-c", KILLED, tiny.path, destination], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "model.partial" / "blocks" / "unfinished-layer-001.bin").exists()
    names = written(monkeypatch)
    compile_model(tiny.path, destination, F32)
    assert names == ["layer-001", "head"]
    assert not list((destination / "blocks").glob("unfinished-*"))


def test_the_same_inputs_give_the_same_bytes(make_hf, tmp_path):
    tiny = make_hf("llama")
    first, second = (compile_model(tiny.path, tmp_path / name, CompileOptions(name="m")) for name in ("a", "b"))
    assert read_manifest(first).digest == read_manifest(second).digest


def test_a_finished_model_is_not_compiled_again(make_hf, tmp_path, monkeypatch):
    tiny, destination = make_hf("llama"), tmp_path / "model"
    compile_model(tiny.path, destination, F32)
    names = written(monkeypatch)
    assert compile_model(tiny.path, destination, F32) == destination
    assert names == []
    with pytest.raises(UsageError, match="other options"):
        compile_model(tiny.path, destination, CompileOptions(Precision.INT8))
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UsageError, match="is no model directory"):
        compile_model(tiny.path, other, F32)
    with pytest.raises(ManifestError):
        read_manifest(other)


def test_two_compiles_at_once_are_kept_apart(half):
    checkpoint, destination = half
    handle = os.open(destination.with_name("model.partial"), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(ResourceError, match=r"another compile is writing .*model\.partial"):
            compile_model(checkpoint, destination, F32)
    finally:
        os.close(handle)
    compile_model(checkpoint, destination, F32)


def test_too_little_space_is_said_in_numbers_before_anything_is_written(make_hf, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    tiny = make_hf("llama")
    with pytest.raises(ResourceError, match=r"has 0\.00 GB free, the compiled model needs 0\.07 GB more"):
        compile_model(tiny.path, tmp_path / "model", F32)
    assert not list((tmp_path / "model.partial" / "blocks").iterdir())


def test_a_disk_that_fills_up_leaves_what_is_finished(make_hf, tmp_path, monkeypatch):
    tiny, destination = make_hf("llama"), tmp_path / "model"
    from shoal_stage.compile import workplace

    real = workplace.sync_file

    def full(path: Path) -> None:
        if path.name == "unfinished-layer-001.bin":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path)

    monkeypatch.setattr(workplace, "sync_file", full)
    with pytest.raises(ResourceError, match=r"the disk of .*model\.partial is full; what is finished stays there"):
        compile_model(tiny.path, destination, F32)
    assert not destination.exists()
    monkeypatch.setattr(workplace, "sync_file", real)
    names = written(monkeypatch)
    compile_model(tiny.path, destination, F32)
    assert names == ["layer-001", "head"]


def test_a_block_that_was_not_written_whole_is_noticed(make_hf, tmp_path, monkeypatch):
    """OpenVINO's writer says nothing when the disk is full: here it writes the weights but for the last bytes."""
    import openvino as ov

    real = ov.save_model

    def short(model, path, **options):
        real(model, path, **options)
        weights = path.with_suffix(".bin")
        with weights.open("rb+") as stream:
            stream.truncate(weights.stat().st_size - 64)

    monkeypatch.setattr(ov, "save_model", short)
    with pytest.raises(ResourceError, match=r"unfinished-embed\.xml was not written whole"):
        compile_model(make_hf("llama").path, tmp_path / "model", F32)
    assert not (tmp_path / "model").exists()


def test_a_directory_that_no_compile_made_is_left_alone(make_hf, tmp_path):
    tiny, partial = make_hf("llama"), tmp_path / "model.partial"
    (partial / "blocks").mkdir(parents=True)
    (partial / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds thesis\.txt, which no compile put there"):
        compile_model(tiny.path, tmp_path / "model", F32)
    assert (partial / "thesis.txt").read_text() == "years of work"
