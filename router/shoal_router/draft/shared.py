"""Finished answers of each group, to draft from: what one user was told, the next one of the same group may be told.

Groups never see each other's texts. Memory is bounded over all groups: a group's texts stand in parts, and when there
are too many ids, the oldest part of the group with most parts goes as a whole (an index of n-grams cannot let go of
single texts), of equals that of the group that was not used for longest. So a busy group does not push a quiet one out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from shoal_router.draft.matches import Match, MatchIndex

_PARTS = 4
_END = -1
"""Stands between two texts: no match crosses it, since no token has this id."""


class SharedTexts:
    """Invariant: all parts together hold at most `budget` ids, and no group has an empty list of parts."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._part_size = max(budget // _PARTS, 1)
        self._groups: OrderedDict[str, list[MatchIndex]] = OrderedDict()
        self.size = 0

    def add(self, group: str, ids: Sequence[int]) -> None:
        """Take in a finished text; of one that is longer than a part, its end."""
        text = [*ids[-(self._part_size - 1) :], _END] if self._part_size > 1 else []
        if not text:
            return
        parts = self._groups.setdefault(group, [])
        if not parts or len(parts[-1].tokens) + len(text) > self._part_size:
            parts.append(MatchIndex())
        parts[-1].extend(text)
        self._groups.move_to_end(group)
        self.size += len(text)
        while self.size > self._budget:
            self._evict()

    def longest(self, group: str, tail: Sequence[int], above: int) -> tuple[MatchIndex, Match] | None:
        """The longest match of the end of `tail` in the group's texts, if longer than `above`; the newest of equals."""
        parts = self._groups.get(group)
        if parts is None:
            return None
        self._groups.move_to_end(group)
        best: tuple[MatchIndex, Match] | None = None
        for part in reversed(parts):
            match = part.longest(tail, len(part.tokens), above)
            if match is not None:
                best, above = (part, match), match.length
        return best

    def _evict(self) -> None:
        group, parts = max(self._groups.items(), key=lambda each: len(each[1]))
        self.size -= len(parts.pop(0).tokens)
        if not parts:
            del self._groups[group]


def until_end(index: MatchIndex, end: int, count: int) -> list[int]:
    """At most `count` ids behind position `end`, no further than the text goes that they stand in."""
    following = index.tokens[end + 1 : end + 1 + count]
    return following[: following.index(_END)] if _END in following else following
