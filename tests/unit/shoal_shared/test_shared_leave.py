"""Leaving: what was said arrives, what would be torn down is not."""

from __future__ import annotations

import subprocess
import sys


def test_output_arrives_and_no_destructor_runs() -> None:
    code = (
        "import atexit, sys; from shoal.leave import leave; atexit.register(print, 'late'); "
        "sys.stdout.write('said'); sys.stderr.write('told'); leave(3)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said", "told")


def test_a_reader_that_has_gone_is_no_error() -> None:
    code = "import os, sys; from shoal.leave import leave; sys.stdout.write('x' * 100000); os.close(1); leave(4)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 4
