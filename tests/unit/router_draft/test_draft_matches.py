"""The index of matches against a search that tries everything, and the memory of finished answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_router.draft.matches import REACH, SHORTEST, Match, MatchIndex
from shoal_router.draft.shared import SharedTexts, until_end

IDS = st.lists(st.integers(0, 2), max_size=30)


def naive(tokens: list[int], tail: list[int], before: int, above: int) -> Match | None:
    """Every end position, newest first; the first of the longest matches."""
    best = Match(-1, above)
    for end in range(before - 1, -1, -1):
        length = 0
        while length < min(len(tail), REACH) and length <= end and tokens[end - length] == tail[-1 - length]:
            length += 1
        if length > best.length:
            best = Match(end, length)
    return best if best.length > above else None


@given(pieces=st.lists(IDS, max_size=6), suffix=IDS, above=st.integers(SHORTEST - 1, 12))
@settings(max_examples=250, deadline=None)
def test_the_longest_match_is_what_trying_everything_finds(pieces, suffix, above):
    index = MatchIndex()
    for piece in pieces:
        index.extend(piece)
    tokens = [token for piece in pieces for token in piece]
    assert index.tokens == tokens
    before = len(tokens) - (not suffix)
    tail = [*tokens, *suffix]
    found = index.longest(tail, before, above)
    expected = naive(tokens, tail, before, above)
    # A chain is not followed beyond its newest 32: short texts of three ids may hold more equal n-grams than that.
    if len(tokens) <= 34:
        assert found == expected
    elif found is not None:
        assert expected is not None
        assert above < found.length <= expected.length
        assert tokens[found.end - found.length + 1 : found.end + 1] == tail[-found.length :]


def test_a_match_beyond_the_newest_of_a_short_n_gram_is_found_by_a_long_one():
    index = MatchIndex()
    passage = [*range(100, 120)]
    index.extend([*passage, 1, 2, 3, 777])
    for number in range(200):
        index.extend([1, 2, 3, 1000 + number])
    found = index.longest([*passage, 1, 2, 3], len(index.tokens))
    assert found == Match(22, 23)


@given(texts=st.lists(st.tuples(st.sampled_from("ab"), IDS), max_size=25), budget=st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_finished_answers_stay_within_their_budget_and_their_group(texts, budget):
    shared = SharedTexts(budget)
    for number, (group, ids) in enumerate(texts):
        # Ids of one group are even, of the other odd.
        shared.add(group, [2 * token + (group == "a") for token in ids])
        assert 0 <= shared.size <= budget, number
        found = shared.longest(group, [2 * token + (group == "b") for token in ids], SHORTEST - 1)
        assert found is None, "a group drafts from the other one's answers"


def test_a_busy_group_loses_its_oldest_answers_and_a_quiet_one_keeps_its_own():
    shared = SharedTexts(400)
    quiet = [*range(50)]
    shared.add("quiet", quiet)
    for number in range(20):
        shared.add("busy", [5000 + 50 * number + offset for offset in range(50)])
        assert shared.longest("quiet", quiet[:10], 3) is not None
    assert shared.longest("busy", [5000, 5001, 5002], 2) is None
    index, match = shared.longest("busy", [5952, 5953, 5954], 2)
    assert until_end(index, match.end, 5) == [*range(5955, 5960)]


def test_of_groups_alike_the_one_not_used_for_longest_goes():
    shared = SharedTexts(400)
    for group in range(4):
        shared.add(str(group), [100 * group + offset for offset in range(90)])
    assert shared.longest("0", [3, 4, 5], 2) is not None
    shared.add("4", [400 + offset for offset in range(90)])
    assert shared.longest("1", [103, 104, 105], 2) is None
    assert all(shared.longest(str(group), [100 * group + offset for offset in range(5)], 2) for group in (0, 2, 3, 4))


def test_a_draft_never_runs_from_one_answer_into_the_next():
    shared = SharedTexts(1000)
    shared.add("", [1, 2, 3, 4, 5])
    shared.add("", [7, 8, 9])
    index, match = shared.longest("", [2, 3, 4], 2)
    assert until_end(index, match.end, 10) == [5]
    index, match = shared.longest("", [3, 4, 5], 2)
    assert until_end(index, match.end, 10) == []
