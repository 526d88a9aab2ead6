"""Which sources a router drafts from, by what it is given: the one place that puts them together."""

from __future__ import annotations

from shoal_router.draft.composite import FirstOf, Mixed
from shoal_router.draft.model import ModelDrafter
from shoal_router.draft.ngram import NgramDrafter
from shoal_router.draft.suffix import SuffixDrafter
from shoal_router.schedule.guarded import GuardedDrafter


def drafter_for(model: ModelDrafter | None) -> GuardedDrafter:
    """The text's own repetitions, and a draft model where there is one."""
    text = FirstOf(SuffixDrafter(), NgramDrafter())
    if model is None:
        return GuardedDrafter(text)
    return GuardedDrafter(Mixed(text, model, away=lambda: not model.connected.is_set()))
