"""How much of a growing text must wait, because it may turn out to be the beginning of a marker."""

from __future__ import annotations


def held_back(text: str, marker: str) -> int:
    """Length of the tail that is white space and then a beginning of `marker`; either may be missing.

    White space waits with the marker, since it belongs to the marker when one follows and to the text when none does.
    """
    begun = next((end for end in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:end])), 0)
    return len(text) - len(text[: len(text) - begun].rstrip())
