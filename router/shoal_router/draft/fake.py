"""A source that is right or wrong by a script: for tests of what uses a Drafter.

    drafter = ScriptedDrafter(lambda text: oracle(text), script=[True, True, False])

drafts the right id twice, then a wrong one, and so on, however its drafts are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

from shoal_router.schedule.drafting import Draft


class ScriptedDrafter:
    """See Drafter. `successor` gives the right id after a text; `vocab_size` bounds the wrong ones.

    Every call must make sense: a sequence is known between `begin` and `end`, and asked for at least one id.
    `texts` holds the committed ids of the sequences that are known.
    """

    def __init__(
        self,
        successor: Callable[[Sequence[int]], int],
        script: Iterable[bool] = (True,),
        *,
        vocab_size: int = 256,
        confidence: float = 0.8,
    ) -> None:
        self._successor = successor
        self._script = cycle(script)
        self._vocab_size = vocab_size
        self._confidence = confidence
        self.texts: dict[int, list[int]] = {}
        self.drafted = 0

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:  # noqa: ARG002 - nothing is shared
        """See Drafter.begin."""
        self.texts[seq] = list(tokens)

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        if limit < 1:
            raise ValueError(f"sequence {seq} is asked for {limit} ids")
        text = [*self.texts[seq], *suffix]
        for _ in range(limit):
            right = self._successor(text)
            text.append(right if next(self._script) else (right + 1) % self._vocab_size)
        self.drafted += limit
        return Draft(tuple(text[-limit:]), "script", (self._confidence,) * limit)

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        self.texts[seq] += tokens

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        del self.texts[seq]
