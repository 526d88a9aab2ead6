"""Suffix, n-gram, composite and scripted sources: what they propose, and what they must not learn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_router.draft.composite import FirstOf, Mixed
from shoal_router.draft.ngram import NgramDrafter
from shoal_router.draft.suffix import SuffixDrafter
from shoal_router.schedule.drafting import Draft, Drafter

IDS = st.lists(st.integers(0, 3), max_size=20)


def begun(drafter: Drafter, tokens: Sequence[int], seq: int = 1, group: str = "") -> Drafter:
    drafter.begin(seq, tokens, group)
    return drafter


def ids_of(draft: Draft | None) -> tuple[int, ...]:
    return () if draft is None else draft.tokens


@pytest.mark.parametrize("make", [SuffixDrafter, NgramDrafter])
@given(pieces=st.lists(IDS, min_size=1, max_size=5), suffix=IDS, limit=st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_a_draft_fits_the_limit_is_never_padded_and_does_not_depend_on_how_text_came(make, pieces, suffix, limit):
    whole = [token for piece in pieces for token in piece]
    one, other = begun(make(), pieces[0]), begun(make(), whole)
    for piece in pieces[1:]:
        one.propose(1, suffix, limit)
        one.commit(1, piece)
    draft = one.propose(1, suffix, limit)
    assert draft == other.propose(1, suffix, limit)
    if draft is not None:
        assert 1 <= len(draft.tokens) <= limit
        assert len(draft.confidence) == len(draft.tokens)
        assert all(0 < each < 1 for each in draft.confidence)
        assert set(draft.tokens) <= {*whole, *suffix}


def test_a_suffix_draft_is_as_long_as_its_match():
    text = [*range(40), 90, 91]
    for matched in range(3, 12):
        drafter = begun(SuffixDrafter(), [*text, *range(10, 10 + matched)])
        assert ids_of(drafter.propose(1, [], 32)) == tuple(range(10 + matched, 10 + 2 * matched))
    assert ids_of(begun(SuffixDrafter(), [*text, 10, 11]).propose(1, [], 32)) == ()


def test_the_most_recent_of_equal_matches_is_continued():
    drafter = begun(SuffixDrafter(), [1, 2, 3, 50, 9, 1, 2, 3, 60, 8, 1, 2, 3])
    assert ids_of(drafter.propose(1, [], 1)) == (60,)
    assert ids_of(begun(NgramDrafter(), [2, 3, 50, 9, 2, 3, 60, 8, 2, 3]).propose(1, [], 1)) == (60,)


def test_a_longer_match_wins_over_a_more_recent_one():
    drafter = begun(SuffixDrafter(), [7, 1, 2, 3, 50, 9, 1, 2, 3, 60, 7, 1, 2, 3])
    assert ids_of(drafter.propose(1, [], 1)) == (50,)


def test_a_repetition_goes_on_in_what_it_drafts_itself():
    drafter = begun(SuffixDrafter(), [1, 2, 3, 1, 2, 3, 1, 2, 3])
    assert ids_of(drafter.propose(1, [], 6)) == (1, 2, 3, 1, 2, 3)
    assert ids_of(drafter.propose(1, [1, 2], 6)) == (3, 1, 2, 3, 1, 2)


def test_the_optimistic_suffix_is_read_and_never_learned():
    for make in (SuffixDrafter, NgramDrafter):
        drafter = begun(make(), [*range(20)])
        assert ids_of(drafter.propose(1, [3, 4, 5, 6], 2)) == (7, 8)
        drafter.propose(1, [30, 31, 32, 33, 34], 4)
        assert drafter.propose(1, [30, 31, 32], 4) is None
        drafter.commit(1, [3, 4, 5, 6])
        assert ids_of(drafter.propose(1, [], 2)) == (7, 8)


def test_finished_answers_are_shared_within_their_group_only():
    answer = [*range(100, 130)]
    drafter = begun(SuffixDrafter(), [1, 2, 3, 4], seq=1, group="key")
    drafter.commit(1, answer)
    for group, expected in (("key", ()), ("other", ())):
        begun(drafter, [1, 2, 3, 4], seq=2, group=group)
        assert ids_of(drafter.propose(2, [], 4)) == expected, "a running answer is nobody else's"
        drafter.end(2)
    drafter.end(1)
    for group, expected in (("key", (100, 101, 102, 103)), ("other", ()), ("", ())):
        begun(drafter, [1, 2, 3, 4], seq=2, group=group)
        assert ids_of(drafter.propose(2, [], 4)) == expected
        drafter.end(2)


def test_a_sequence_without_an_answer_shares_nothing():
    drafter = begun(SuffixDrafter(), [*range(10)], seq=1)
    drafter.end(1)
    drafter.end(1)
    assert begun(drafter, [3, 4, 5], seq=2).propose(2, [], 4) is None


def test_a_sequence_that_is_known_again_keeps_what_fits():
    for make in (SuffixDrafter, NgramDrafter):
        drafter = begun(make(), [*range(10)])
        drafter.commit(1, [10, 11])
        drafter.begin(1, [*range(12), 12, 3, 4, 5], "")
        assert ids_of(drafter.propose(1, [], 2)) == (6, 7)
        drafter.begin(1, [50, 51, 52, 53, 50, 51, 52], "")
        assert ids_of(drafter.propose(1, [], 1)) == (53,)


class Fixed:
    """Proposes always the same."""

    def __init__(self, name: str, tokens: tuple[int, ...], confidence: float = 0.5) -> None:
        self.draft = Draft(tokens, name, (confidence,) * len(tokens))
        self.heard: list[tuple[object, ...]] = []

    def begin(self, seq: int, tokens: Sequence[int], group: str) -> None:
        self.heard.append(("begin", seq, tuple(tokens), group))

    def wait(self, seq):
        return math.inf

    def propose(self, seq: int, suffix: Sequence[int], limit: int) -> Draft | None:
        self.heard.append(("propose", seq, tuple(suffix), limit))
        tokens = self.draft.tokens[:limit]
        return Draft(tokens, self.draft.source, self.draft.confidence[:limit]) if tokens else None

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        self.heard.append(("commit", seq, tuple(tokens)))

    def end(self, seq: int) -> None:
        self.heard.append(("end", seq))


def test_the_first_source_that_has_something_drafts_and_all_hear_of_the_text():
    silent, speaking, unasked = Fixed("silent", ()), Fixed("speaking", (1, 2)), Fixed("unasked", (3,))
    both = FirstOf(silent, speaking, unasked)
    both.begin(7, [1], "key")
    assert both.propose(7, [5], 4) == Draft((1, 2), "speaking", (0.5, 0.5))
    both.commit(7, [2])
    both.end(7)
    told = [("begin", 7, (1,), "key"), ("commit", 7, (2,)), ("end", 7)]
    assert [call for call in speaking.heard if call[0] != "propose"] == told
    assert unasked.heard == told


def test_a_tail_continues_the_models_ids_under_a_name_of_its_own():
    text, model = Fixed("suffix", (3, 4, 5), 0.4), Fixed("model", (1, 2), 0.9)
    mixed = Mixed(text, model, away=lambda: False)
    assert mixed.propose(7, [9], 4) == Draft((1, 2, 3, 4), "model+suffix", (0.9, 0.9, 0.4, 0.4))
    assert text.heard[-1] == ("propose", 7, (9, 1, 2), 2)
    assert mixed.propose(7, [9], 2) == Draft((1, 2), "model", (0.9, 0.9))


def test_a_model_that_is_late_is_waited_for_and_one_that_is_away_is_replaced():
    weak, late = Fixed("suffix", (3, 4), 0.4), Fixed("model", ())
    assert Mixed(weak, late, away=lambda: False).propose(7, [], 4) is None
    assert Mixed(weak, late, away=lambda: True).propose(7, [], 4) == weak.draft
    silent = Fixed("suffix", ())
    assert Mixed(silent, late, away=lambda: True).propose(7, [], 4) is None


def test_a_copy_that_is_sure_comes_before_the_model():
    sure, model = Fixed("suffix", (3, 4), 0.8), Fixed("model", (1, 2))
    assert Mixed(sure, model, away=lambda: False).propose(7, [], 4) == sure.draft
    assert model.heard == []


def test_a_proposal_on_a_text_of_4000_ids_is_cheap():
    """The best of many: what the machine does beside it is not the source's cost. The aim is 50 microseconds."""
    chance = random.Random(3)
    words = [[chance.randrange(5000) for _ in range(chance.randrange(1, 6))] for _ in range(1500)]
    text: list[int] = []
    while len(text) < 4200:
        text += chance.choice(words)
    drafter = begun(SuffixDrafter(), text[:4000])
    best = 1.0
    for token in text[4000:4200]:
        before = time.perf_counter()
        drafter.propose(1, [], 8)
        best = min(best, time.perf_counter() - before)
        drafter.commit(1, [token])
    assert best < 200e-6
