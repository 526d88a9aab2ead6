"""The reasoning of a model that thinks before it answers: `<think>…</think>` and then the answer.

DeepSeek R1, QwQ and Qwen 3 write so; their chat templates name `</think>`, too. Some templates write `<think>` at the
prompt's end, so that the answer begins within. White space around the markers belongs to neither part.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from shoal_router.text.held import held_back

BEGIN: Final = "<think>"
END: Final = "</think>"


def thinks(template: str) -> bool:
    """Whether the model behind this chat template may write its reasoning."""
    return END in template


def begins_within(prompt: str) -> bool:
    """Whether the answer to a rendered prompt begins within the reasoning."""
    return prompt.rstrip().endswith(BEGIN)


class _At(Enum):
    START = auto()
    WITHIN = auto()
    BEHIND = auto()
    ANSWER = auto()


class ReasoningReader:
    """Splits a growing text; what it gives does not depend on how the text was cut."""

    __slots__ = ("_at", "_buffer", "_leading")

    def __init__(self, *, within: bool) -> None:
        self._at = _At.WITHIN if within else _At.START
        self._leading = within
        self._buffer = ""

    @property
    def within(self) -> bool:
        """The next text is reasoning, as far as is known."""
        return self._at is _At.WITHIN

    def push(self, text: str) -> tuple[str, str]:
        """Reasoning and answer that became certain."""
        self._buffer += text
        reasoning = self._reason() if self._begun() else ""
        if self._at is _At.BEHIND:
            self._buffer = self._buffer.lstrip()
            if self._buffer:
                self._at = _At.ANSWER
        answer = ""
        if self._at is _At.ANSWER:
            answer, self._buffer = self._buffer, ""
        return reasoning, answer

    def flush(self) -> tuple[str, str]:
        """What was held back, when the text has ended."""
        held, self._buffer = self._buffer, ""
        return (held, "") if self._at is _At.WITHIN else ("", held)

    def _begun(self) -> bool:
        """Whether the text is within the reasoning; decides at the start whether there is any."""
        if self._at is _At.START:
            beginning = self._buffer.lstrip()
            if beginning.startswith(BEGIN):
                self._at, self._leading, self._buffer = _At.WITHIN, True, beginning.removeprefix(BEGIN)
            elif not BEGIN.startswith(beginning):
                self._at = _At.ANSWER
        return self._at is _At.WITHIN

    def _reason(self) -> str:
        if self._leading:
            self._buffer = self._buffer.lstrip()
            self._leading = not self._buffer
        before, end, behind = self._buffer.partition(END)
        if end:
            self._at, self._buffer = _At.BEHIND, behind
            return before.rstrip()
        certain = len(self._buffer) - held_back(self._buffer, END)
        reasoning, self._buffer = self._buffer[:certain], self._buffer[certain:]
        return reasoning
