"""Suffix drafts: find where the text's end stood before, and go on as it went on there.

Looked for in the sequence itself (edits, quotes, code, tables) and in finished answers of the same group. The longer
match wins, the sequence's own text and the more recent place among equals. The draft is as long as the match
(SuffixDecoding, arXiv 2411.04975: a long match is a long copy), so that a wrong guess costs little and a copy soon
fills every step.

A match that reaches the text's end goes on in what it drafts itself, as deflate's overlapping copies do: of "ab ab ab"
the index knows only the past, the draft goes on for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from shoal_router.draft.matches import REACH, SHORTEST, MatchIndex
from shoal_router.draft.shared import SharedTexts, until_end
from shoal_router.schedule.drafting import Draft

SHARED_IDS = 1 << 17
"""Ids of finished answers that are kept over all groups: some 40 MB."""

_LEAD = 32
"""Ids of the prompt's end that are kept with an answer: what was asked tells which answer to go on with."""

_DOUBT = 3.0


@dataclass(slots=True)
class _Text:
    group: str
    prompt_len: int
    index: MatchIndex = field(default_factory=MatchIndex)


class SuffixDrafter:
    """See Drafter. Invariant: the indexes hold committed ids only."""

    name = "suffix"

    def __init__(self, shared_ids: int = SHARED_IDS) -> None:
        self._texts: dict[int, _Text] = {}
        self._shared = SharedTexts(shared_ids)

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        """See Drafter.begin."""
        text = self._texts.get(seq)
        if text is None or text.group != group or text.index.tokens != list(tokens[: len(text.index.tokens)]):
            text = self._texts[seq] = _Text(group, len(tokens))
        text.index.extend(tokens[len(text.index.tokens) :])

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        text = self._texts[seq]
        index = text.index
        tail = [*index.tokens[-REACH:], *suffix]
        # The text's end matches itself, which tells nothing.
        own = index.longest(tail, len(index.tokens) - (not suffix))
        other = self._shared.longest(text.group, tail, own.length if own is not None else SHORTEST - 1)
        if other is not None:
            length = other[1].length
            ids = until_end(other[0], other[1].end, min(length, limit))
        elif own is not None:
            length = own.length
            ids = _repeat(index.tokens, own.end, suffix, min(length, limit))
        else:
            return None
        return Draft(tuple(ids), self.name, _confidence(length, len(ids))) if ids else None

    def wait(self, seq: int) -> float:  # noqa: ARG002 - what there is, is there at once
        """See Drafter.wait."""
        return inf

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        self._texts[seq].index.extend(tokens)

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        text = self._texts.pop(seq, None)
        if text is not None and len(text.index.tokens) > text.prompt_len:
            self._shared.add(text.group, text.index.tokens[max(text.prompt_len - _LEAD, 0) :])


def _repeat(tokens: list[int], end: int, suffix: Sequence[int], count: int) -> list[int]:
    """`count` ids behind position `end` of the committed ids, then of the suffix, then of themselves."""
    ids = tokens[end + 1 : end + 1 + count]
    if len(ids) < count:
        behind = [*suffix, *ids]
        first = end + 1 - len(tokens)
        for number in range(len(ids), count):
            behind.append(behind[first + number])
        ids = behind[len(suffix) :]
    return ids


def _confidence(matched: int, count: int) -> tuple[float, ...]:
    """A prior that grows with the match, by one with every id that was accepted; what is learned corrects it.

    Of the next id after a match of 3, 5, 8-11, 16-31 and 32 ids or more, this project's own sources and documents gave
    0.43, 0.62, 0.78, 0.83 and 0.93.
    """
    return tuple((matched + number) / (matched + number + _DOUBT) for number in range(count))
