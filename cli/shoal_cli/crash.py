"""Writes the traceback of a defect to a file: the terminal shows one line, and nothing is lost for the report."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from pathlib import Path
from tempfile import gettempdir

import shoal
from shoal_cli.cache import crashes_dir


def write_crash_log(error: BaseException) -> Path | None:
    """Write the traceback and what one needs to read it; None when no folder takes it."""
    text = "\n".join(
        [
            f"shoal {shoal.__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"arguments: {sys.argv[1:]}",
            "".join(traceback.format_exception(error)),
        ]
    )
    for folder in (crashes_dir(), Path(gettempdir())):
        path = folder / f"shoal-crash-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return path
    return None
