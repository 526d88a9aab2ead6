"""The parts of a chat answer as it grows: its text, the reasoning before it, the tools that it calls."""

from __future__ import annotations

from dataclasses import dataclass

from shoal_router.text.calls import CallDelta, CallReader
from shoal_router.text.reasoning import ReasoningReader


@dataclass(frozen=True, slots=True)
class Parts:
    """What became certain of each part."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


class PartsReader:
    """Splits what the model writes. Without any reader, all of it is text."""

    __slots__ = ("_calls", "_reasoning")

    def __init__(self, reasoning: ReasoningReader | None = None, calls: CallReader | None = None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def reasons(self) -> bool:
        """The next text is reasoning, as far as is known."""
        return self._reasoning is not None and self._reasoning.within

    @property
    def called(self) -> bool:
        """A call is complete."""
        return self._calls is not None and self._calls.calls > 0

    @property
    def done(self) -> bool:
        """The answer is complete, whatever the model goes on to write."""
        return self._calls is not None and self._calls.done

    def push(self, text: str) -> Parts:
        """The parts of the next text."""
        reasoning, text = self._reasoning.push(text) if self._reasoning is not None else ("", text)
        return self._parts(text, reasoning)

    def flush(self) -> Parts:
        """What was held back, when the text has ended."""
        reasoning, text = self._reasoning.flush() if self._reasoning is not None else ("", "")
        parts = self._parts(text, reasoning)
        held = self._calls.flush() if self._calls is not None else ""
        return Parts(parts.content + held, parts.reasoning, parts.calls)

    def _parts(self, text: str, reasoning: str) -> Parts:
        content, calls = self._calls.push(text) if self._calls is not None else (text, ())
        return Parts(content, reasoning, calls)
