"""A text and where its parts occurred before: the longest match of what now ends it, the most recent of equals.

Hash chains, as deflate finds its matches (RFC 1951, section 4): every n-gram's positions are linked, newest first, and
a search walks one chain and compares backwards. Against a suffix tree this gives up matches beyond the newest
`_CANDIDATES` of a chain; in return a prompt is indexed at about a third of a microsecond an id and level (a tree takes
some ten times that, on the loop that all users share), and memory is about 150 bytes an id and level.

Two lengths of n-gram: the chain of a long one holds few and good candidates, where that of a short one ("of the") may
hold hundreds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST = 3
REACH = 64
"""Ids that a match is followed back: more would make neither the choice nor the draft better."""

_LONG = 8
_CANDIDATES = 32


@dataclass(frozen=True, slots=True)
class Match:
    """The `length` ids up to and with position `end` equal the end of the text that was searched for."""

    end: int
    length: int


class _Chain:
    """Positions of every n-gram of one length. `links[p]` is the previous end of the n-gram that ends at p, or -1."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.heads: dict[int, int] = {}
        self.links = array("q")

    def extend(self, tokens: list[int]) -> None:
        """Take in the n-grams that end in what `tokens` has gained."""
        heads, links, size = self.heads, self.links, self.size
        links.extend([-1] * (min(len(tokens), size - 1) - len(links)))
        first = len(links)
        shifted = [tokens[first - size + 1 + offset :] for offset in range(size)]
        for end, key in enumerate(map(hash, zip(*shifted, strict=False)), first):
            links.append(heads.get(key, -1))
            heads[key] = end


class MatchIndex:
    """Invariant: both chains cover the whole of `tokens`, which only grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._chains = (_Chain(_LONG), _Chain(SHORTEST))

    def extend(self, ids: Sequence[int]) -> None:
        """Append to the text."""
        self.tokens += ids
        for chain in self._chains:
            chain.extend(self.tokens)

    def longest(self, tail: Sequence[int], before: int, above: int = SHORTEST - 1) -> Match | None:
        """The longest match of the end of `tail` that ends before position `before`, if it is longer than `above`."""
        tail = tail[-REACH:]
        for chain in self._chains:
            found = self._search(chain, tail, before, above)
            if found is not None:
                return found
            if above >= chain.size - 1:
                break  # what a shorter n-gram finds beyond this, this one would have found
        return None

    def _search(self, chain: _Chain, tail: Sequence[int], before: int, above: int) -> Match | None:
        tokens, links, reach = self.tokens, chain.links, len(tail)
        best, best_end = max(chain.size - 1, above), -1
        if reach <= best:
            return None
        end = chain.heads.get(hash(tuple(tail[-chain.size :])), -1)
        tries = _CANDIDATES
        while end >= 0 and tries:
            if end < before:
                tries -= 1
                # A longer match also holds where the best one ends: one comparison rules most candidates out.
                if best <= end and tokens[end - best] == tail[-1 - best]:
                    length = 0
                    while length < reach and length <= end and tokens[end - length] == tail[-1 - length]:
                        length += 1
                    if length > best:
                        best, best_end = length, end
                        if length == reach:
                            break
            end = links[end]
        return Match(best_end, best) if best_end >= 0 else None
