"""Stop strings in a stream: what may be shown now, what must wait, where the answer ends.

A stop string may come in pieces over any number of tokens. The matcher keeps back only the longest tail that could
still become a stop string; everything before it is released at once.

The answer ends where the first stop string is complete (of two that end at the same character, the longer one
counts), and is cut before it. Defined like this the result does not depend on how the text was cut into tokens.
"""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Looks for stop strings. `stopped` is final: after it nothing more may be pushed."""

    __slots__ = ("_held", "_longest", "_prefixes", "_stops", "stopped")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("a stop string must not be empty")
        self._prefixes = frozenset(stop[:end] for stop in self._stops for end in range(1, len(stop)))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of the text so far that has become certain."""
        if not self._stops:
            return text
        text = self._held + text
        end = self._cut(text)
        if end is not None:
            self.stopped, self._held = True, ""
            return text[:end]
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text that was kept back, when the answer ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str) -> int | None:
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest tail of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[len(text) - length :] in self._prefixes:
                return length
        return 0
