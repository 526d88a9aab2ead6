"""`shoal` is interrupted while it compiles or loads: no process stays, nothing half-written has a final name."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from shoal.manifest import read_manifest, verify_files


def models(cache: Path) -> list[Path]:
    """Finished model directories: what is being written has another name."""
    folder = cache / "shoal" / "models"
    return [path for path in folder.iterdir() if path.suffix != ".partial"] if folder.is_dir() else []


def blocks_written(cache: Path) -> int:
    return len(list(cache.glob("shoal/models/*.partial/blocks/layer-*.bin")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_compile_leaves_no_model_and_is_resumed(
    start, manifest: Path, tmp_path: Path, number: int
) -> None:
    cache = tmp_path / "cache"
    shoal = start("run", manifest, "--prompt", "Hello", cache=cache)
    shoal.until(lambda: blocks_written(cache) >= 3)
    assert shoal.end(number) == (-9 if number == signal.SIGKILL else 128 + number)
    assert shoal.left_over() == []
    assert models(cache) == []
    written = {path: path.stat().st_mtime_ns for path in cache.glob("shoal/models/*.partial/blocks/layer-00[01].bin")}

    again = start("compile", manifest, cache=cache)
    assert again.end() == 0, again.output()
    (model,) = models(cache)
    finished = read_manifest(model)
    verify_files(model, finished.files_of(0, len(finished.blocks)) + finished.tokenizer)
    assert {path.name: (model / "blocks" / path.name).stat().st_mtime_ns for path in written} == {
        path.name: time for path, time in written.items()
    }, "blocks that were finished are not compiled again"
    assert not list(cache.glob("shoal/models/*.partial"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["a stage exists", "the router exists"])
def test_an_interrupted_load_leaves_no_process(start, manifest: Path, moment: str, number: int) -> None:
    shoal = start("run", manifest, "--stages", 2, "--port", 0)
    shoal.until(lambda: shoal.child("shoal_stage" if moment == "a stage exists" else "shoal_router"))
    assert shoal.end(number) == (-9 if number == signal.SIGKILL else 128 + number)
    assert shoal.left_over() == []


def test_an_impatient_second_ctrl_c_kills(start, manifest: Path) -> None:
    shoal = start("run", manifest, "--stages", 2, "--port", 0)
    shoal.ready_url()
    # A stage that does not answer: it would be given its grace time.
    stage = shoal.child("shoal_stage")
    stage.suspend()
    shoal.process.send_signal(signal.SIGINT)
    router = shoal.child("shoal_router")
    shoal.until(lambda: not router.is_running() or router.status() == psutil.STATUS_ZOMBIE)
    assert shoal.end(signal.SIGINT) == 130
    assert shoal.left_over() == []


def test_a_closed_terminal_stops_everything(start, manifest: Path) -> None:
    shoal = start("run", manifest, "--stages", 1, "--port", 0)
    shoal.ready_url()
    assert shoal.end(signal.SIGHUP) == 129
    assert shoal.left_over() == []
