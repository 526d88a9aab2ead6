"""Which pipeline a request goes to."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal_router.fleet.choice import Offer, limit_of, ranking

IDLE = Offer(max_context=4096, slots=8, sequences=0, backlog=0, cached=0)


def best(*offers, tokens=1000, answer=100):
    there = dict(enumerate(offers))
    return ranking(there, tokens=tokens, limit=limit_of(there, prompt=tokens, answer=answer))[0]


def test_the_least_loaded_pipeline_is_chosen_and_of_equals_the_first():
    assert best(IDLE, IDLE) == 0
    assert best(replace(IDLE, sequences=1), IDLE) == 1
    assert best(replace(IDLE, sequences=3), replace(IDLE, sequences=4, slots=16)) == 1, "against what it can hold"
    assert best(replace(IDLE, backlog=10), IDLE) == 1


def test_a_second_turn_goes_where_its_kv_is_unless_others_are_in_its_way_there():
    assert best(IDLE, replace(IDLE, sequences=3, cached=960)) == 1
    assert best(IDLE, replace(IDLE, sequences=5, cached=960)) == 0
    assert best(IDLE, replace(IDLE, backlog=2000, cached=960)) == 0
    assert best(IDLE, replace(IDLE, sequences=1, cached=32)) == 0, "a short beginning is not worth company"


def test_only_a_pipeline_that_can_hold_the_whole_answer_is_chosen():
    small = replace(IDLE, max_context=1024)
    crowded = replace(IDLE, sequences=20)
    assert best(small, crowded, tokens=900, answer=124) == 0
    assert best(small, crowded, tokens=900, answer=125) == 1
    assert best(small, crowded, tokens=10, answer=None) == 1, "to the end of the context that the API tells"
    assert best(small, crowded, tokens=5000, answer=1) == 1, "which refuses it with the largest context"
    assert ranking({0: small}, tokens=10, limit=2000) == []
    assert ranking({}, tokens=10, limit=0) == []


OFFERS = st.builds(
    Offer,
    max_context=st.sampled_from([512, 4096]),
    slots=st.integers(1, 16),
    sequences=st.integers(0, 40),
    backlog=st.integers(0, 5000),
    cached=st.integers(0, 500),
)


@given(st.dictionaries(st.integers(0, 15), OFFERS, max_size=6), st.integers(1, 6000), st.none() | st.integers(1, 5000))
def test_the_ranking_holds_those_that_fit_and_a_burden_more_never_raises_one(offers, prompt, answer):
    limit = limit_of(offers, prompt=prompt, answer=answer)
    ranked = ranking(offers, tokens=prompt, limit=limit)
    assert sorted(ranked) == [number for number in sorted(offers) if offers[number].max_context >= limit]
    assert bool(ranked) == bool(offers)
    for place, number in enumerate(ranked):
        worse = offers | {number: replace(offers[number], sequences=offers[number].sequences + 1)}
        assert ranking(worse, tokens=prompt, limit=limit).index(number) >= place
        better = offers | {number: replace(offers[number], cached=offers[number].cached + 1)}
        assert ranking(better, tokens=prompt, limit=limit).index(number) <= place
