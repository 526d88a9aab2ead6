"""Ending with the process that started this one: no stage or router may be left over when its starter was killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from shoal.errors import ResourceError, UsageError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
STARTER = "SHOAL_STARTED_BY"
"""Environment variable with the starter's process id: it may end before the kernel is asked."""


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends. Raises UsageError where there is no such thing."""
    if sys.platform != "linux":
        raise UsageError("--die-with-parent needs Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise ResourceError(f"--die-with-parent was refused: {os.strerror(ctypes.get_errno())}")
    if os.environ.get(STARTER, str(os.getppid())) != str(os.getppid()):
        raise ResourceError("the process that started this one has ended")
