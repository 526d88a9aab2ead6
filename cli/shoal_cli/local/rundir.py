"""The folder of a run: plan.json and one log for each process, kept for a look afterwards, and pruned.

A run holds a lock on its folder for as long as it lives, so that pruning never takes the folder of a living run,
whatever became of its process id.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal_cli.local.logfile import earlier

KEPT_RUNS = 10
"""How many folders of past runs stay."""

LOCK_FILE = "lock"
_TAIL_BYTES = 16384
_ERROR_LINE = re.compile(r"(?:shoal\w*: )?error: (.+)")
_LAST_LINES = 3
_LINE_LIMIT = 300


@contextmanager
def run_directory(parent: Path) -> Iterator[Path]:
    """A new folder under `parent`, locked while the context lasts; older ones beyond `KEPT_RUNS` are removed."""
    directory = parent / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    directory.mkdir(parents=True)
    with (directory / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prune(parent, keep=KEPT_RUNS)
        yield directory


def prune(parent: Path, keep: int) -> None:
    """Remove all but the newest `keep` folders of runs that have ended. Folder names sort by start time."""
    past = [path for path in sorted(parent.iterdir()) if path.is_dir() and not _in_use(path)]
    for path in past[: max(len(past) - keep, 0)]:
        # Two runs may prune at once: the other one may have removed it already.
        shutil.rmtree(path, ignore_errors=True)


def _in_use(directory: Path) -> bool:
    try:
        with (directory / LOCK_FILE).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        # Either just being made by another run, or what is left of a removal that was interrupted.
        return time.time() - directory.stat().st_mtime < 60 if directory.exists() else False
    return False


def last_words(log: Path) -> str:
    """What a dead process said last, as one line: its own error line when it wrote one, else its last lines."""
    # A log that was cut short a moment ago has its last words in the part that was put aside.
    text = (_tail(earlier(log)) + _tail(log))[-_TAIL_BYTES:].decode("utf-8", "replace")
    lines = [words for line in text.splitlines() if (words := _words(line.strip()))]
    for line in reversed(lines):
        message = _ERROR_LINE.match(line)
        if message:
            return message[1][:_LINE_LIMIT]
    return " | ".join(line[:_LINE_LIMIT] for line in lines[-_LAST_LINES:])


def _tail(log: Path) -> bytes:
    """The last bytes of a file; none of one that cannot be read."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            return stream.read()
    except OSError:
        return b""


def _words(line: str) -> str:
    """A line of a log for a person: of a JSON entry its message and what was raised, of an event nothing."""
    if not line.startswith("{"):
        return line
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    raised = str(entry.get("traceback", "")).strip().rpartition("\n")[2]
    return ": ".join(filter(None, [str(entry.get("message", "")), raised]))
