"""Where drafts come from, as the scheduler sees it: the seam between speculation and its sources.

The scheduler tells a source what became text and asks it to continue. Sources (a suffix index, n-grams, a draft model)
live in `shoal_router.draft`; this module knows none of them, so that the scheduler stays free of I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed ids. `tokens`: 1 to `limit` ids, never padded. `source`: its name in statistics.

    `confidence`: the source's own estimate, for each id, that it is accepted given that the ids before it are; a
    constant prior will do.
    """

    tokens: tuple[int, ...]
    source: str
    confidence: tuple[float, ...]


class Drafter(Protocol):
    """Synchronous and cheap: a source that computes elsewhere answers with what it has by now."""

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        """A sequence starts, or is known again, with these committed ids.

        `group` is the scope in which finished answers may be shared (an API key); '' stands for all.
        """
        ...

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """Continue the committed ids and `suffix` (sent, not committed: read, never learned) by at most `limit` ids.

        None when there is nothing good.
        """
        ...

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """These ids became text, in order."""
        ...

    def end(self, seq: int) -> None:
        """The sequence is over; its answer may enter shared indexes."""
        ...
