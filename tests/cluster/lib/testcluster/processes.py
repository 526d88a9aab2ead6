"""Child processes of a test cluster: started with a log file each, ended by their id, never left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG: Final = 1
_STOP_S: Final = 15.0
_POLL_S: Final = 0.05
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class ProcessEnded(Exception):
    """A child ended although it should run; the text holds the end of its log."""


class DeadlineMissed(Exception):
    """What was waited for did not come in time; the text says what."""


@dataclass(slots=True)
class Process:
    """One running program and its log."""

    name: str
    log: Path
    popen: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls,
        name: str,
        command: list[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Process:
        """Start a program whose output goes to `log`. It ends with this process, even when this one is killed."""
        with log.open("ab") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=None if environment is None else dict(environment),
                start_new_session=True,  # Ctrl-C reaches the tests, which then end the children in order.
                preexec_fn=_end_with_parent,
            )
        return cls(name=name, log=log, popen=popen)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    def check_running(self) -> None:
        """Raise ProcessEnded when it is not running any more."""
        code = self.popen.poll()
        if code is not None:
            raise ProcessEnded(f"{self.name} ended with {code}; {self.log} ends with:\n{self.last_words()}")

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """End it without warning, as a loss of power would, and wait for that."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(timeout=_STOP_S)

    def stop(self) -> None:
        """Ask it to end, and make it end when it does not within the deadline."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()


def wait_until(condition: Callable[[], T | None], *, what: str, deadline_s: float, poll_s: float = _POLL_S) -> T:
    """The first true value of the condition; raises DeadlineMissed naming `what` when none comes in time."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise DeadlineMissed(f"{what}: not within {deadline_s:.0f} s; the last value was {value!r}")
        time.sleep(poll_s)


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now. They are held open together, so that no two are the same."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def _end_with_parent() -> None:
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        os._exit(127)
