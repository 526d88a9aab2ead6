"""Whether a grammar can be used, before anything of its request goes to a stage.

Compiling is another process's work (worker.py): started with the first grammar, killed when one takes too long, and
started again with the next. What was asked before is answered from memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from shoal.errors import ShoalError
from shoal.wire.messages import LARGEST_GRAMMAR
from shoal_router.constrain.constraint import Constraint, GrammarRefused, grammar_of

START_SECONDS = 60.0
"""Until a new process has read the tokenizer."""

COMPILE_SECONDS = 5.0
"""By the clock, on a machine that may be busy; of computing time the process itself allows less."""

Answer = dict[str, str]
"""A line of the process (worker.py)."""

_REMEMBERED = 256

_log = logging.getLogger(__name__)


class GrammarCheck(Protocol):
    """Turns what a request asks for into a grammar that the stages can follow."""

    async def grammar(self, constraint: Constraint) -> str:
        """Raises GrammarRefused with the reason."""
        ...


class CheckUnavailable(ShoalError):
    """The process that compiles grammars does not start."""


class ProcessCheck:
    """The real one. Grammars are compiled one after the other; one that is killed takes at most its own deadline."""

    def __init__(
        self, directory: Path, vocab_size: int, stop_ids: tuple[int, ...], *, compile_seconds: float = COMPILE_SECONDS
    ) -> None:
        self._arguments = (str(directory), str(vocab_size), *map(str, stop_ids))
        self._compile_seconds = compile_seconds
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._known: OrderedDict[Constraint, Answer] = OrderedDict()

    async def grammar(self, constraint: Constraint) -> str:
        """See GrammarCheck."""
        if (size := len(constraint.text.encode(errors="replace"))) > LARGEST_GRAMMAR:
            raise GrammarRefused(f"too large: {size} bytes, {LARGEST_GRAMMAR} are taken")
        if constraint not in self._known:
            async with self._turn:
                if constraint not in self._known:
                    self._known[constraint] = await self._compile(constraint)
        self._known.move_to_end(constraint)
        answer = self._known[constraint]
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        if "refused" in answer:
            raise GrammarRefused(answer["refused"])
        return answer["grammar"]

    async def start(self) -> None:
        """Nothing yet: whoever never asks for a grammar has no process for it."""

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _compile(self, constraint: Constraint) -> Answer:
        """What the process says. Raises GrammarRefused when it does not live to say it.

        That is not remembered: a machine that is busy may be the cause.
        """
        process = await self._running()
        assert process.stdin is not None
        reason = "too complex: the compiler needs too much memory for it, or fails"
        answer = None
        try:
            process.stdin.write(json.dumps(asdict(constraint)).encode() + b"\n")
            answer = await self._line(process, self._compile_seconds)
        except TimeoutError:
            reason = f"too complex: it was not compiled within {self._compile_seconds:g} s"
        finally:
            # What it might still say would answer the next question; so would its death in mid-answer.
            if answer is None:
                await self.stop()
        if answer is None:
            _log.warning("a grammar was refused: %s", reason, extra={"param": constraint.param})
            raise GrammarRefused(reason)
        return answer

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        command = (sys.executable, "-P", "-m", "shoal_router.constrain.worker", *self._arguments)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=16 * LARGEST_GRAMMAR
        )
        ready = None
        try:
            ready = await self._line(self._process, START_SECONDS)
        except TimeoutError:
            _log.warning("the process that compiles grammars took longer than %g s to start", START_SECONDS)
        finally:
            if ready is None:  # too late, dead, or nobody waits any more
                await self.stop()
        if ready is None:
            raise CheckUnavailable("the process that compiles grammars does not start: see the router's log")
        return self._process

    @staticmethod
    async def _line(process: Process, seconds: float) -> Answer | None:
        """The next line; None when the process ended. Raises TimeoutError."""
        assert process.stdout is not None
        async with asyncio.timeout(seconds):
            line = await process.stdout.readline()
        if not line:
            return None
        answer: Answer = json.loads(line)
        return answer


@dataclass
class FakeCheck:
    """Takes everything but what is in `refused`, and compiles nothing."""

    refused: dict[str, str] = field(default_factory=dict)
    asked: list[Constraint] = field(default_factory=list)

    async def grammar(self, constraint: Constraint) -> str:
        """See GrammarCheck."""
        self.asked.append(constraint)
        if constraint.text in self.refused:
            raise GrammarRefused(self.refused[constraint.text])
        return grammar_of(constraint)
