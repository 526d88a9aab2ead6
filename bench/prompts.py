"""Prompts of four kinds, since drafts, lengths and ties differ by kind of text: story, explanation, code, list."""

from __future__ import annotations

KINDS = {
    "story": "Write the beginning of a story about {}.",
    "explanation": "Explain to a curious child how {} works.",
    "code": "Write a Python class that models {}, with two methods and docstrings.",
    "list": "List ten facts about {}, one a line.",
}
TOPICS = (
    "a lighthouse",
    "a bicycle",
    "the tides",
    "a beehive",
    "an office printer",
    "the water cycle",
    "a library",
    "a coral reef",
    "a clock tower",
    "a railway station",
    "a volcano",
    "a violin",
    "a bakery",
    "a satellite",
    "a school of herring",
    "a thunderstorm",
)


def prompts() -> list[str]:
    """64 prompts in a fixed order, kinds in turn."""
    return [form.format(topic) for topic in TOPICS for form in KINDS.values()]


_COPIED = (
    "The quick brown fox jumps over the lazy dog near the old stone bridge. Every morning at seven the baker opens the "
    "green door, sweeps the narrow street and sets nine round loaves on the wooden bench. Nobody in the village knows "
    "who painted the blue boat that lies behind the mill.\n"
)


def copy_prompt() -> str:
    """A text twice, and its beginning: what follows is a copy, as in edits and quotations."""
    return _COPIED * 2 + _COPIED[:40]


def turned(prompt: list[int], turn: int) -> list[int]:
    """The prompt with another number before it, so that no round repeats the text of an earlier one."""
    return [*([28] * (turn + 1)), *prompt]
