"""The real `shoal` as a process, on the real model, with a cache of the test session's own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Error, expect, sync_playwright

from shoal.resource import load_sharded_model
from shoal_cli.cache import checkpoints_dir
from shoal_stage.compile import resolve_source

EXAMPLE = Path(__file__).parents[3] / "examples" / "smollm2.yaml"
DEADLINE = 240.0
"""Seconds for anything a test waits for; reached only when something hangs."""


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """SmolLM2-135M-Instruct's GGUF, fetched once into the user's cache."""
    source = load_sharded_model(EXAMPLE).spec.model.source
    assert source is not None
    return resolve_source(source.uri, checkpoints_dir(), source.sha256).path


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """XDG_CACHE_HOME of runs that may share what was compiled."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def manifest(tmp_path: Path, checkpoint: Path) -> Path:
    """A ShardedModel of the real model on the CPU, two streams of 512 tokens."""
    path = tmp_path / "smollm2.yaml"
    path.write_text(
        "apiVersion: shoal.dev/v1alpha1\nkind: ShardedModel\nmetadata: {name: smollm2}\nspec:\n"
        f"  model: {{source: {{uri: {checkpoint}}}}}\n  devices: [CPU]\n"
        "  scheduler: {streams: 2, maxContext: 512}\n"
    )
    return path


@dataclass(slots=True)
class Shoal:
    """A running `shoal`, its output in files, and every process that it started."""

    process: psutil.Popen
    out: Path
    err: Path
    family: set[psutil.Process]

    def until(self, happened: Callable[[], object]) -> None:
        """Wait until something has happened; fails when shoal ends first."""
        end = time.monotonic() + DEADLINE
        while not happened():
            self.children()
            assert self.process.poll() is None, f"shoal ended: {self.output()}"
            assert time.monotonic() < end, f"it did not happen: {self.output()}"
            self._tick()

    def ready_url(self) -> str:
        """Wait for the ready line; the API's base URL."""
        self.until(lambda: re.search(r"^ready after", self.out.read_text(), re.MULTILINE))
        return re.search(r"ready after .*?: (\S+)/v1", self.out.read_text())[1]

    def children(self) -> list[psutil.Process]:
        """The stages and the router that live now."""
        try:
            now = self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.family.update(now)
        return now

    def child(self, *words: str) -> psutil.Process | None:
        """The living child whose command line holds all the words."""
        for each in self.children():
            try:
                if set(words) <= set(each.cmdline()):
                    return each
            except psutil.NoSuchProcess:
                continue
        return None

    def end(self, number: int | None = None) -> int:
        """Send a signal, if one is given, and wait for the end; the exit code."""
        self.children()
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        assert "Traceback" not in self.output()
        return code

    def left_over(self) -> list[psutil.Process]:
        """Processes that still live after a moment to be collected in."""
        _, alive = psutil.wait_procs(self.family, timeout=20)
        return [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]

    def output(self) -> str:
        """Everything that it printed."""
        return self.out.read_text() + self.err.read_text()

    def _tick(self) -> None:
        try:
            self.process.wait(0.02)
        except psutil.TimeoutExpired:
            return


Start = Callable[..., Shoal]


@pytest.fixture
def start(tmp_path: Path, session_cache: Path) -> Iterator[Start]:
    """Start `shoal` with arguments; whatever is still running when the test ends is killed."""
    started: list[Shoal] = []

    def begin(*arguments: object, cache: Path = session_cache, largest_file_kib: int | None = None) -> Shoal:
        number = len(started)
        limit = [] if largest_file_kib is None else ["bash", "-c", f'ulimit -f {largest_file_kib} && exec "$@"', "-"]
        out, err = tmp_path / f"out-{number}", tmp_path / f"err-{number}"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = psutil.Popen(
                [*limit, sys.executable, "-P", "-m", "shoal_cli.main", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=tmp_path,
                env={**os.environ, "XDG_CACHE_HOME": str(cache)},
            )
        started.append(Shoal(process, out, err, set()))
        return started[-1]

    yield begin
    for shoal in started:
        for process in [*shoal.family, shoal.process]:
            with ignored():
                process.send_signal(signal.SIGKILL)
        with ignored():
            shoal.process.wait(10)


@contextmanager
def ignored() -> Iterator[None]:
    """A process that is gone already is what we want."""
    try:
        yield
    except psutil.NoSuchProcess:
        return


PATIENCE_MS = 60_000
"""For anything that is waited for in a page; reached only when something hangs."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium: the system's, else Playwright's own. Modules with it have no asynchronous tests: Playwright's loop runs
    in this thread for as long as it lives.
    """
    expect.set_options(timeout=PATIENCE_MS)
    system = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    # As root, which containers of CI are, Chromium's sandbox does not start.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(args=arguments, executable_path=system)
        except Error as error:
            reason = str(error).splitlines()[0]
            pytest.skip(f"no Chromium: apt install chromium, or playwright install chromium ({reason})")
        yield found
        found.close()
