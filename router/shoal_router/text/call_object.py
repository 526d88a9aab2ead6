"""One tool call's JSON object while it is written: `{"name": "f", "arguments": {…}}`.

The arguments are handed out as the very text that the model writes, as soon as the name is known. This is no JSON
parser: it only tells where the two values begin and end. Llama calls the arguments `parameters`.
"""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import Final

_ARGUMENTS: Final = ("arguments", "parameters")
_KEYS: Final = ("name", "type", "id", *_ARGUMENTS)


class _Due(Enum):
    """What may come next within the outer braces."""

    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class CallObject:
    """Takes characters until it is `over`, or `broken`: no object of this form. `text` is all that it took."""

    def __init__(self) -> None:
        self.text = ""
        self.name: str | None = None
        self.over = False
        self.broken = False
        self._depth = 0
        self._due = _Due.KEY
        self._in_string = False
        self._escaped = False
        self._key = ""
        self._value = ""
        self._arguments = ""
        self._taken = 0

    @property
    def recognised(self) -> bool:
        """It is a call: it has a name, and arguments or none to come."""
        return self.name is not None and bool(self._arguments or self.over)

    @property
    def value_is_due_to_end(self) -> bool:
        """A value has just ended: the object may end here."""
        return self._due is _Due.COMMA

    def take(self) -> str:
        """The arguments' text since it was last taken."""
        if self.over and not self._arguments:
            self._arguments = "{}"
        taken, self._taken = self._arguments[self._taken :], len(self._arguments)
        return taken

    def feed(self, character: str) -> None:
        """The next character. Nothing may follow once it is over or broken."""
        self.text += character
        if self._in_string:
            self._within_string(character)
        elif self._depth > 1:
            self._within_value(character)
        elif self._depth == 0:
            self._depth = 1
            self.broken = character != "{"
        else:
            self._between(character)

    def _within_string(self, character: str) -> None:
        self._extend(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if self._depth == 1:
                self._value_ended()

    def _within_value(self, character: str) -> None:
        self._extend(character)
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if self._depth == 1:
                self._value_ended()

    def _between(self, character: str) -> None:
        if self._due is _Due.VALUE and self._value and (character in ",}" or character.isspace()):
            self._value_ended()  # a number, true, false or null
        if character.isspace():
            return
        match self._due, character:
            case (_Due.KEY | _Due.VALUE, '"') if not self._value:
                self._in_string = True
                self._extend(character)
            case _Due.VALUE, "{" | "[" if not self._value:
                self._depth = 2
                self._extend(character)
            case _Due.COLON, ":":
                self._due = _Due.VALUE
            case _Due.COMMA, ",":
                self._due = _Due.KEY
            case ((_Due.COMMA | _Due.KEY), "}"):
                self.over = True
                self.broken = self.name is None
            case _Due.VALUE, _ if character.isalnum() or character in "+-.":
                self._extend(character)
            case _:
                self.broken = True

    def _extend(self, character: str) -> None:
        self._value += character
        if self._due is _Due.VALUE and self._key in _ARGUMENTS and self._value[0] == "{":
            self._arguments = self._value

    def _value_ended(self) -> None:
        value, self._value = self._value, ""
        if self._due is _Due.KEY:
            self._key, self._due = value[1:-1], _Due.COLON
            self.broken = self._key not in _KEYS  # some other JSON: nobody shall wait for its end
            return
        self._due = _Due.COMMA
        if self._key == "name" or (self._key in _ARGUMENTS and value[0] == '"'):
            self._string(value)

    def _string(self, value: str) -> None:
        """The name; or arguments as a string that holds JSON, which some models write."""
        try:
            text = json.loads(value)
        except ValueError:
            text = None
        if not isinstance(text, str) or not text:
            self.broken = True
        elif self._key == "name":
            self.name = text
        else:
            self._arguments = text
