"""Several sources as one.

FirstOf     asks in order, and takes the first answer
Sure        lets through only what its source is sure enough of
WithTail    a source's ids, and behind them what another one makes of them: a model's prefix, an n-gram's tail
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal_router.schedule.drafting import Draft, Drafter


class _Several:
    """What happens to a sequence is told to every source, whichever drafted."""

    def __init__(self, *sources: Drafter) -> None:
        self._sources = sources

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        """See Drafter.begin."""
        for source in self._sources:
            source.begin(seq, tokens, group)

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        for source in self._sources:
            source.commit(seq, tokens)

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        for source in self._sources:
            source.end(seq)


class FirstOf(_Several):
    """The first source that has something."""

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        for source in self._sources:
            draft = source.propose(seq, suffix, limit)
            if draft is not None and draft.tokens:
                return draft
        return None


class Sure(_Several):
    """A source's ids as long as its own estimate for each is at least `least`."""

    def __init__(self, source: Drafter, least: float) -> None:
        super().__init__(source)
        self._least = least

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        draft = self._sources[0].propose(seq, suffix, limit)
        if draft is None:
            return None
        sure = next((at for at, each in enumerate(draft.confidence) if each < self._least), len(draft.tokens))
        return Draft(draft.tokens[:sure], draft.source, draft.confidence[:sure]) if sure else None


class WithTail(_Several):
    """The head's ids, continued by the tail. A mixed draft has a name of its own in statistics.

    What is learned of mixed drafts so never turns the head off on its own (mesh-llm#938), nor the tail.
    """

    def __init__(self, head: Drafter, tail: Drafter) -> None:
        super().__init__(head, tail)
        self._head = head
        self._tail = tail

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose. Without a head there is no tail: it would be a draft of its own."""
        head = self._head.propose(seq, suffix, limit)
        if head is None or not 0 < len(head.tokens) < limit:
            return head
        tail = self._tail.propose(seq, [*suffix, *head.tokens], limit - len(head.tokens))
        if tail is None:
            return head
        return Draft(head.tokens + tail.tokens, f"{head.source}+{tail.source}", head.confidence + tail.confidence)
