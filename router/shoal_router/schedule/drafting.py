"""The seam between the scheduler and whatever proposes tokens: n-grams, suffix trees, a draft model, or a mix of them.

    begin ──> propose, commit, propose, … ──> end          one sequence's life

A draft is only ever a guess: the last stage verifies each id by drawing the token itself, so a source cannot change a
text, only how soon it comes. That is why the scheduler may ask with a suffix that is not true yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the next ids of a sequence.

    `tokens`: 1 … limit ids, never padded. `source`: its name in statistics, such as "suffix", "ngram" or "model".
    `confidence`: for each id the source's own estimate that it is accepted, given the ids before it; a source that
    cannot tell gives a constant, which the scheduler corrects by what really was accepted.
    """

    tokens: tuple[int, ...]
    source: str
    confidence: tuple[float, ...]


class Drafter(Protocol):
    """Where drafts come from. Synchronous, cheap: a source that computes elsewhere answers with what it has by now."""

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        """A sequence starts, or is known again, with these committed ids.

        `group` is the scope in which finished answers may be shared (an API key); "" is all.
        """
        ...

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """Continue the committed ids and then `suffix`, ids that were sent but are not committed (optimistic).

        At most `limit` ids; None when there is nothing good.
        """
        ...

    def wait(self, seq: int) -> float:
        """Seconds until there is likely one id more than was proposed; infinite when none is being made."""
        ...

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """Ids that became text, in order."""
        ...

    def end(self, seq: int) -> None:
        """The sequence is over; its answer may enter shared indexes."""
        ...
