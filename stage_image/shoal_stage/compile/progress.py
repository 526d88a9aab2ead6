"""What the compiler reports while it works, and two ways to show it: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@dataclass(frozen=True, slots=True)
class Report:
    """One step forward: what is being done, and how many of the bytes to read are behind us."""

    what: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Report], None]


def silent(report: Report) -> None:
    """Reports nothing."""


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[OnProgress]:
    """Shows reports on `stream` (standard error): a bar with block, MB/s and time left, or a line every tenth."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _Lines(stream)
        return
    console = Console(file=stream)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda report: bar.update(
            task, description=report.what, completed=report.done_bytes, total=report.total_bytes
        )


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tenth = -1

    def __call__(self, report: Report) -> None:
        tenth = 10 * report.done_bytes // max(report.total_bytes, 1)
        if tenth != self._tenth:
            self._tenth = tenth
            print(
                f"compiling: {report.what}, {10 * tenth} % of {report.total_bytes / 1e6:.0f} MB",
                file=self._stream,
                flush=True,
            )
