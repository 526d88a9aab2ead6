"""Several sources as one.

FirstOf   asks in order, and takes the first answer: suffix, then n-gram
Mixed     a draft model with the text's own repetitions before, behind and instead of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal_router.schedule.drafting import Draft, Drafter

_SURE = 0.75
"""A text's own draft that claims this much goes before the model: a long copy is right more often, and is there now."""


class _Several:
    """What happens to a sequence is told to every source, whichever drafted."""

    def __init__(self, *sources: Drafter) -> None:
        self._sources = sources

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        """See Drafter.begin."""
        for source in self._sources:
            source.begin(seq, tokens, group)

    def wait(self, seq: int) -> float:
        """See Drafter.wait."""
        return min(source.wait(seq) for source in self._sources)

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
            if draft is not None:
                return draft
        return None


class Mixed(_Several):
    """The text's own source where it is sure of itself, else the model's ids and behind them the text's.

    While the model is `away` the text's source stands in. While it is only late nothing does: a weak guess would send
    the model off to draft behind it.

    A draft of two sources has a name of its own in statistics: what is learned of mixed drafts must turn neither the
    model off nor the text's source (mesh-llm#938).
    """

    def __init__(self, text: Drafter, model: Drafter, away: Callable[[], bool]) -> None:
        super().__init__(text, model)
        self._text = text
        self._model = model
        self._away = away

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        copied = self._text.propose(seq, suffix, limit)
        if copied is not None and (copied.confidence[0] >= _SURE or self._away()):
            return copied
        head = self._model.propose(seq, suffix, limit)
        if head is None or len(head.tokens) >= limit:
            return head
        tail = self._text.propose(seq, [*suffix, *head.tokens], limit - len(head.tokens))
        if tail is None:
            return head
        return Draft(head.tokens + tail.tokens, f"{head.source}+{tail.source}", head.confidence + tail.confidence)
