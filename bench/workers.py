"""Systems under measurement as processes: pinned to cores, loaded once, asked in turn over their standard streams.

A worker's module calls `answer(handler)`: it reads one JSON object a line and writes one JSON object a line. Loading
happens before the first answer, so that alternating between systems costs nothing but the measured work.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from shoal.errors import ResourceError, UsageError

Message = dict[str, Any]


class Worker:
    """A system in a process of its own on `cores`. Use as a context manager: leaving it ends the process group."""

    def __init__(self, module: str, arguments: Sequence[str], cores: Sequence[int]) -> None:
        self.name = module
        command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )

    def ask(self, message: Message, deadline_s: float = 300) -> Message:
        """Send one request and wait for its answer. Raises ResourceError when the worker ended or the time is over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], deadline_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            why = f"gave no answer in {deadline_s:.0f} s" if not ready else f"ended with {self._process.wait(30)}"
            raise ResourceError(f"{self.name} {why}: its messages stand above")
        answer: Message = json.loads(line)
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(timeout=20)
        if self._process.stdout is not None:
            self._process.stdout.close()


def answer(handler: Callable[[Message], Message]) -> None:
    """Answer requests until standard input ends. What libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(handler(json.loads(line))) + "\n")


def rate(worker: Worker, request: Message) -> Callable[[], float]:
    """A measure for bench.measure.alternate: tokens per second over all answers, from the request to the last token."""

    def tokens_per_second() -> float:
        reply = worker.ask(request)
        return sum(map(len, reply["answers"])) / float(reply["seconds"])

    return tokens_per_second


def last_core() -> int:
    """The core that one-core systems share: the last one this process may use."""
    return max(os.sched_getaffinity(0))


def two_cores() -> list[int]:
    """The two cores that are the two nodes. Raises UsageError when this process may use one only."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    if len(cores) < 2:
        raise UsageError("two nodes are two cores, and this process may use one only")
    return cores
