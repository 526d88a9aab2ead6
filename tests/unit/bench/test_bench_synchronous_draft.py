"""The paper's way to draft: K ids before every verification, whatever became of the last ones."""

from __future__ import annotations

import asyncio

import pytest

from bench.systems.synchronous_draft import SynchronousDrafter
from shoal.errors import ResourceError, UsageError
from shoal.vocabulary import Vocabulary
from shoal_stage.draft.fake import VOCABULARY, start_draft
from shoal_stage.engine.fake import greedy_text
from shoaltest.waiting import until_elsewhere

PROMPT = [3, 1, 4]


async def test_it_waits_until_all_ids_are_there():
    async with start_draft() as draft:
        drafter = await asyncio.to_thread(SynchronousDrafter, draft.address, VOCABULARY)
        text = list(PROMPT)
        drafter.begin(7, text, "")
        # All right and one more, all wrong, one right; then a longer draft than ever.
        for limit, right in ((3, 3), (3, 0), (3, 1), (5, 5)):
            proposed = await asyncio.to_thread(drafter.propose, 7, [], limit)
            assert proposed is not None
            assert list(proposed.tokens) == greedy_text(text, limit)
            after = greedy_text([*text, *proposed.tokens[:right]], 1)[0]
            news = [*proposed.tokens[:right], after if right == limit else (after + 1) % 256]
            drafter.commit(7, news)
            text += news
        drafter.end(7)
        await until_elsewhere(lambda: not draft.engine.live)


async def test_a_draft_process_that_breaks_off_is_not_forgotten():
    async with start_draft() as draft:
        drafter = await asyncio.to_thread(SynchronousDrafter, draft.address, VOCABULARY)
        drafter.begin(7, PROMPT, "")
    with pytest.raises(ResourceError, match="broke off"):
        await asyncio.to_thread(drafter.propose, 7, [], 3)
    assert drafter.failure is not None


async def test_a_draft_model_of_another_vocabulary_is_refused():
    async with start_draft() as draft:
        other = Vocabulary("other", VOCABULARY.size, "0" * 64)
        with pytest.raises(UsageError, match="not the same ones"):
            await asyncio.to_thread(SynchronousDrafter, draft.address, other)
