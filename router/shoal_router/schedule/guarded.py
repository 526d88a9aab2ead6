"""A drafter whose defects cost speed and nothing else: after the first one it is not asked any more.

Speculation changes no text, so an answer must not fail because of it. The error is logged in full, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from shoal_router.schedule.drafting import Draft, Drafter

_log = logging.getLogger(__name__)

T = TypeVar("T")


class GuardedDrafter:
    """See Drafter. `broken` after the first defect: then every sequence goes on without drafts."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.broken = False

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        """See Drafter.begin."""
        self._guard(lambda: self._drafter.begin(seq, tokens, group))

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        """See Drafter.propose."""
        return self._guard(lambda: self._drafter.propose(seq, suffix, limit))

    def wait(self, seq: int) -> float:
        """See Drafter.wait."""
        seconds = self._guard(lambda: self._drafter.wait(seq))
        return inf if seconds is None else seconds

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        self._guard(lambda: self._drafter.commit(seq, tokens))

    def end(self, seq: int) -> None:
        """See Drafter.end."""
        self._guard(lambda: self._drafter.end(seq))

    def _guard(self, call: Callable[[], T]) -> T | None:
        if self.broken:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - answers must outlive a defect of what only makes them faster
            self.broken = True
            _log.error("drafting met a defect: no more drafts until the router is started anew", exc_info=error)
            return None
