"""One process of a local run: started in its own process group, watched through events and a log, always ended.

A stage or router announces itself by JSON lines on stdout (`{"event": "listening", "address": …}`, then
`{"event": "ready"}`); everything it writes goes to its log file. The own process group keeps a Ctrl-C of the terminal
away from it, so that shoal decides in which order things stop.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.errors import IntegrityError, PlanError, ResourceError, ShoalError, StageError, UsageError
from shoal_cli.local.logfile import keep_short
from shoal_cli.local.rundir import last_words

KILL_DEADLINE = 5.0
"""Seconds that a process may take to vanish after SIGKILL. Only one that hangs in the kernel takes longer."""

LONGEST_LINE = 65536
"""Of an event; longer lines only go to the log."""

LOG_SECONDS = 30.0
"""How often it is seen to that the log does not grow without end."""

DRAIN_DEADLINE = 1.0
"""Seconds to wait for a dead process's last output. A grandchild that holds the pipe must not keep us."""

_MEANING: dict[int, type[ShoalError]] = {
    kind.exit_code: kind for kind in (UsageError, PlanError, IntegrityError, ResourceError, StageError)
}


class ManagedProcess:
    """A child process. Whoever calls `start` must call `stop`; `stop` may be called at any time, and twice."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self._argv = tuple(argv)
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._events: dict[str, dict[str, Any]] = {}
        self._ended = False
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Start it; returns as soon as it exists."""
        # A pipe of our own: asyncio's `wait` would wait for the end of its pipes too, which a grandchild can hold open.
        read_end, write_end = os.pipe()
        stdout = os.fdopen(read_end, "rb", buffering=0)
        try:
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=write_end,
                    stderr=log,
                    env=self._env,
                    start_new_session=True,
                )
        except OSError as error:
            stdout.close()
            raise ResourceError(f"{self.name} could not be started: {error.filename}: {error.strerror}") from error
        finally:
            os.close(write_end)
        self._watcher = asyncio.create_task(self._watch(self._process, stdout), name=f"watch {self.name}")

    @property
    def pid(self) -> int | None:
        """Its process id, once started."""
        return self._process.pid if self._process else None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended

    async def event(self, name: str, deadline: float) -> dict[str, Any]:
        """Wait for an event, at most `deadline` seconds.

        Raises the error of `failure` when the process ends first, StageError when time is up.
        """
        try:
            async with asyncio.timeout(deadline), self._changed:
                await self._changed.wait_for(lambda: name in self._events or self._ended)
        except TimeoutError:
            raise StageError(f"{self.name} was not {name} after {deadline:.0f} s{self._epitaph()}") from None
        if name not in self._events:
            raise self.failure()
        return self._events[name]

    async def said(self, name: str) -> bool:
        """Wait for an event for as long as the process lives; False when it ended without it."""
        async with self._changed:
            await self._changed.wait_for(lambda: name in self._events or self._ended)
        return name in self._events

    async def wait(self) -> None:
        """Wait until the process has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended)

    def failure(self) -> ShoalError:
        """Why it ended, with its last words; of the kind that its exit code means."""
        code = self._process.returncode if self._process else None
        kind = _MEANING.get(code or 0, StageError)
        return kind(f"{self.name} {_how(code)}{self._epitaph()}")

    async def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL to its whole group when it is still there after `grace` seconds."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await process.wait()
        # Even when it ended by itself: what it may have started shares its group.
        self.kill()
        async with asyncio.timeout(KILL_DEADLINE):
            await process.wait()
            if self._watcher is not None:
                await self._watcher

    def kill(self) -> None:
        """SIGKILL to the process group, at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _watch(self, process: asyncio.subprocess.Process, stdout: io.RawIOBase) -> None:
        reader = asyncio.create_task(self._read(stdout))
        ending = asyncio.create_task(process.wait())
        while not (await asyncio.wait({ending}, timeout=LOG_SECONDS))[0]:
            await asyncio.to_thread(keep_short, self.log)
        await asyncio.wait({reader}, timeout=DRAIN_DEADLINE)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def _read(self, pipe: io.RawIOBase) -> None:
        """Copy stdout to the log and pick the events out of it."""
        loop = asyncio.get_running_loop()
        stdout = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), pipe)
        try:
            await self._pump(stdout)
        finally:
            transport.close()

    async def _pump(self, stdout: asyncio.StreamReader) -> None:
        rest = b""
        with self.log.open("ab", buffering=0) as log:
            try:
                while chunk := await stdout.read(65536):
                    # Whole lines only: the process writes its stderr into the same file by itself.
                    whole, end, rest = (rest + chunk).rpartition(b"\n")
                    _note(log, whole + end)
                    for event in filter(None, map(_event, whole.split(b"\n"))):
                        async with self._changed:
                            self._events[event["event"]] = event
                            self._changed.notify_all()
                    if len(rest) > LONGEST_LINE:
                        _note(log, rest)
                        rest = b""
            finally:
                _note(log, rest)

    def _epitaph(self) -> str:
        words = last_words(self.log)
        return f": {words} (log: {self.log})" if words else f" (log: {self.log})"


def _note(log: io.RawIOBase, text: bytes) -> None:
    """Into the log, as far as there is room: on a full disk its events still count, and its pipe must not fill up."""
    with suppress(OSError):
        log.write(text)


def _event(line: bytes) -> dict[str, Any] | None:
    """The event on this line of stdout, if it is one."""
    if not line.startswith(b"{"):
        return None
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) and isinstance(data.get("event"), str) else None


def _how(code: int | None) -> str:
    if code is None:
        return "has not ended"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
