"""Tool calls in a growing answer: what is text, and what is a call's name and arguments.

    TEXT ──marker──> REGION ──"{"──> OBJECT ──over──> REGION ──closing marker, or anything else──> TEXT

The markers are in call_format.py. A Llama answer begins in a region, since its calls need no marker. What looks like a
call and turns out to be none is given back as text; what was announced as a call stays one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from shoal_router.text.call_format import CallFormat
from shoal_router.text.call_object import CallObject
from shoal_router.text.held import held_back

_OPENING: Final = {
    CallFormat.HERMES: "<tool_call>",
    CallFormat.LLAMA: "<|python_tag|>",
    CallFormat.MISTRAL: "[TOOL_CALLS]",
}
_CLOSING: Final = "</tool_call>"
MARKERS: Final = (*_OPENING.values(), _CLOSING, "[ARGS]")
"""Tokens that a parser must see, even where the tokenizer calls them special."""

_SEPARATORS: Final = "[],;"
# Mistral since 2025: [TOOL_CALLS]name[ARGS]{…}
_BARE_NAME: Final = re.compile(r"([A-Za-z0-9_.-]+)(?:\[ARGS\])?\s*(?=\{)")
_BARE_NAME_BEGUN: Final = re.compile(r"[A-Za-z0-9_.-]+(?:\[(?:A(?:R(?:G(?:S(?:\]\s*)?)?)?)?)?)?")


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of call number `index`. The first delta of a call has its id and name."""

    index: int
    arguments: str
    call_id: str | None = None
    name: str | None = None


class _At(Enum):
    TEXT = auto()
    REGION = auto()
    OBJECT = auto()


class CallReader:
    """Splits a growing text; what it gives does not depend on how the text was cut.

    `names`: the tools; only Llama's calls need them, since any answer in JSON looks like one. With `one`, the answer
    is `done` behind its first call.
    """

    def __init__(self, form: CallFormat, names: Collection[str], new_id: Callable[[], str], *, one: bool) -> None:
        self._form = form
        self._names = names
        self._new_id = new_id
        self._one = one
        self._opening = _OPENING[form]
        self._at = _At.REGION if form is CallFormat.LLAMA else _At.TEXT
        self._buffer = ""
        self._opened = ""  # what led into the region, as long as it has no call
        self._object = CallObject()
        self._bare = False
        self._announced = False
        self.calls = 0
        self.done = False

    def push(self, text: str) -> tuple[str, tuple[CallDelta, ...]]:
        """Text and calls that became certain."""
        self._buffer += text
        content, deltas = "", []
        stood = None
        while self._buffer and stood != (self._at, len(self._buffer)) and not self.done:
            stood = self._at, len(self._buffer)
            match self._at:
                case _At.TEXT:
                    content += self._text()
                case _At.REGION:
                    content += self._region()
                case _At.OBJECT:
                    back, delta = self._call()
                    content += back
                    deltas += [delta] if delta else []
        return content, tuple(deltas)

    def flush(self) -> str:
        """The text that was held back, when the answer has ended."""
        held, self._buffer = self._buffer, ""
        match self._at:
            case _At.TEXT:
                return "" if self.calls and held.isspace() else held
            case _At.REGION:
                return "" if self.calls else self._opened + held
            case _At.OBJECT:
                return "" if self._announced else self._opened + self._object.text

    def _text(self) -> str:
        at = self._buffer.find(self._opening)
        if at < 0:
            certain = len(self._buffer) - held_back(self._buffer, self._opening)
            text, self._buffer = self._buffer[:certain], self._buffer[certain:]
            return text
        text = self._buffer[:at].rstrip()
        self._opened = self._buffer[len(text) : at] + self._opening
        self._buffer = self._buffer[at + len(self._opening) :]
        self._at = _At.REGION
        return text

    def _region(self) -> str:
        buffer = self._buffer
        if buffer[0] == "{":
            self._begin(CallObject(), bare=False)
        elif buffer.startswith(self._opening):
            self._skip(len(self._opening))
        elif self._opening.startswith(buffer):
            return ""
        elif buffer[0].isspace() or buffer[0] in _SEPARATORS:
            self._skip(1)
        elif self._form is CallFormat.HERMES and buffer.startswith(_CLOSING):
            self._skip(len(_CLOSING))
            return self._leave()
        elif self._form is CallFormat.MISTRAL and (named := _BARE_NAME.match(buffer)):
            self._skip(named.end())
            begun = CallObject()
            for character in f'{{"name": {json.dumps(named[1])}, "arguments": ':
                begun.feed(character)
            self._begin(begun, bare=True)
        elif not self._may_go_on(buffer):
            return self._leave()
        return ""

    def _may_go_on(self, buffer: str) -> bool:
        """Whether more text could make a marker of it."""
        if self._form is CallFormat.MISTRAL:
            return _BARE_NAME_BEGUN.fullmatch(buffer) is not None
        return self._form is CallFormat.HERMES and _CLOSING.startswith(buffer)

    def _skip(self, length: int) -> None:
        self._opened += self._buffer[:length]
        self._buffer = self._buffer[length:]

    def _begin(self, begun: CallObject, *, bare: bool) -> None:
        self._object, self._bare, self._announced, self._at = begun, bare, False, _At.OBJECT

    def _leave(self) -> str:
        """Back to text. A region without any call was text, too."""
        self._at = _At.TEXT
        opened, self._opened = self._opened, ""
        return "" if self.calls else opened

    def _call(self) -> tuple[str, CallDelta | None]:
        call, used = self._object, 0
        while used < len(self._buffer) and not (call.over or call.broken):
            call.feed(self._buffer[used])
            used += 1
            if self._bare and call.value_is_due_to_end:
                call.feed("}")
        self._buffer = self._buffer[used:]
        known = self._form is not CallFormat.LLAMA or call.name in self._names
        delta = self._delta(call) if call.recognised and known else None
        if not (call.over or call.broken):
            return "", delta
        self._at = _At.REGION
        if self._announced:
            self.calls += 1
            self._opened = ""
            self.done = self._one
            return "", delta
        self._at = _At.TEXT
        opened, self._opened = self._opened, ""
        return opened + call.text, None

    def _delta(self, call: CallObject) -> CallDelta | None:
        arguments = call.take()
        if self._announced:
            return CallDelta(self.calls, arguments) if arguments else None
        self._announced = True
        return CallDelta(self.calls, arguments, self._new_id(), call.name)
