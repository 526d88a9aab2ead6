"""A client in a thread: it streams an answer and notes when each piece came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import openai

from testcluster.processes import wait_until


@dataclass(slots=True)
class Stream:
    """One answer as it comes. `pieces` are (time, text); `error` is what ended it early."""

    pieces: list[tuple[float, str]] = field(default_factory=list)
    finish: str = ""
    error: Exception | None = None
    _thread: threading.Thread | None = None

    def start(self, connect: Callable[[], openai.OpenAI], **asked: Any) -> Stream:
        """Ask, and read in the background."""
        self._thread = threading.Thread(target=self._read, args=(connect, asked), daemon=True)
        self._thread.start()
        return self

    def wait_for(self, pieces: int, deadline_s: float) -> None:
        """Wait until so many pieces have come."""
        wait_until(lambda: len(self.pieces) >= pieces or self.error, what=f"{pieces} pieces", deadline_s=deadline_s)
        if self.error is not None:
            raise self.error

    def join(self, deadline_s: float) -> str:
        """Wait for its end; returns the whole text. An answer that does not end in time is an error."""
        assert self._thread is not None
        self._thread.join(timeout=deadline_s)
        assert not self._thread.is_alive(), f"the stream hangs after {len(self.pieces)} pieces"
        if self.error is not None:
            raise self.error
        return self.text

    @property
    def text(self) -> str:
        """What has come so far."""
        return "".join(text for _, text in list(self.pieces))

    def longest_pause(self) -> tuple[float, float]:
        """Beginning and end of its longest silence."""
        times = [at for at, _ in self.pieces]
        return max(pairwise(times), key=lambda pair: pair[1] - pair[0])

    def _read(self, connect: Callable[[], openai.OpenAI], asked: dict[str, Any]) -> None:
        try:
            with connect() as client:
                for chunk in client.chat.completions.create(stream=True, **asked):
                    for choice in chunk.choices:
                        if choice.delta.content:
                            self.pieces.append((time.monotonic(), choice.delta.content))
                        self.finish = choice.finish_reason or self.finish
        except Exception as error:  # noqa: BLE001 - whatever it is, the test's own thread raises it
            self.error = error
