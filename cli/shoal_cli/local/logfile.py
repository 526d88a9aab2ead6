"""A process's log, kept short while the process writes to it.

The process holds the file open and writes at its end, so the file cannot be put aside under it: what is too long is
copied to `NAME.log.1`, in the place of an older copy, and the file is emptied, as logrotate's copytruncate does. A line
that is written between the two is lost; that is a moment in a day or more.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LONGEST_BYTES = 16 << 20
"""Of one file; there are two of each process."""


def earlier(log: Path) -> Path:
    """Where the part of a log that was put aside is."""
    return log.with_name(f"{log.name}.1")


def keep_short(log: Path, longest: int = LONGEST_BYTES) -> None:
    """Put the log aside when it is too long. On a full disk what it held is dropped: that makes room."""
    copied = log.with_name(f"{log.name}.copied")
    try:
        if log.stat().st_size <= longest:
            return
        shutil.copyfile(log, copied)
        copied.replace(earlier(log))
    except OSError:
        # No room for a second copy, or the folder was removed by hand: a run must not end for its log.
        for part in (copied, earlier(log)):
            with suppress(OSError):
                part.unlink(missing_ok=True)
    with suppress(OSError):
        os.truncate(log, 0)
