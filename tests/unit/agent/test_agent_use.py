"""Patience in both directions: nothing counts before its time, and nothing is forgotten before its own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.node_use import UseReason
from shoal_stage.agent.observation import Observation, Readings, between
from shoal_stage.agent.use import BUSY_ABOVE, BUSY_BELOW, FREE_SECONDS, PATIENCE, Use, next_use


def run(*seen: Observation, start: Use | None = None) -> list[Use]:
    use, found = start or Use(), []
    for each in seen:
        use = next_use(use, each)
        found.append(use)
    return found


def test_others_are_what_pods_did_not_compute():
    seen = between(Readings(0, 8, 100.0, 40.0, 1.0), Readings(10, 8, 140.0, 60.0, 3.0, person=True))
    assert (seen.others, seen.load, seen.hot, seen.person) == (0.25, 0.5, 0.2, True)


def test_load_that_cannot_be_told_from_pods_is_nobodys():
    seen = between(Readings(0, 8, 100.0), Readings(10, 8, 180.0))
    assert (seen.others, seen.load) == (0.0, 1.0)


def test_somebody_who_only_passes_by_changes_nothing():
    assert not run(Observation(0, person=True), Observation(20, person=True), Observation(30))[-1].in_use


@pytest.mark.parametrize(
    ("pressing", "reason"),
    [
        ({"person": True}, UseReason.USER_ACTIVE),
        ({"on_battery": True}, UseReason.ON_BATTERY),
        ({"hot": 0.5}, UseReason.HOT),
        ({"others": BUSY_ABOVE}, UseReason.BUSY_WITH_OTHERS),
    ],
)
def test_what_presses_for_long_enough_counts(pressing, reason):
    patience = PATIENCE[reason]
    early, due = run(
        Observation(0, **pressing), Observation(patience - 1, **pressing), Observation(patience, **pressing)
    )[1:]
    assert early.reason is UseReason.NOBODY
    assert due.reason is reason


def test_load_between_the_two_shares_keeps_a_busy_pc_busy_and_makes_none_busy():
    middle = (BUSY_ABOVE + BUSY_BELOW) / 2
    assert not run(*(Observation(at, others=middle) for at in range(0, 1000, 10)))[-1].in_use
    busy = run(Observation(0, others=0.9), Observation(120, others=0.9))[-1]
    assert busy.in_use
    assert run(*(Observation(at, others=middle) for at in range(130, 3000, 10)), start=busy)[-1].in_use


def test_it_is_free_only_after_a_long_calm():
    use = run(Observation(0, person=True), Observation(30, person=True))[-1]
    use = run(Observation(40), start=use)[-1]
    assert run(Observation(40 + FREE_SECONDS - 1), start=use)[-1].in_use
    assert not run(Observation(40 + FREE_SECONDS), start=use)[-1].in_use
    again = run(Observation(500, person=True), Observation(510), start=use)[-1]
    assert run(Observation(510 + FREE_SECONDS - 1), start=again)[-1].in_use


def test_a_reason_gives_way_to_a_stronger_one_alone():
    busy = run(Observation(0, others=1.0), Observation(120, others=1.0))[-1]
    at_it = run(Observation(130, person=True, others=1.0), Observation(160, person=True, others=1.0), start=busy)[-1]
    assert at_it.reason is UseReason.USER_ACTIVE
    assert run(Observation(170, others=1.0), Observation(400, others=1.0), start=at_it)[-1].reason is at_it.reason


looks = st.builds(
    Observation,
    at=st.integers(1, 200),
    person=st.booleans(),
    on_battery=st.sampled_from([False, False, True]),
    hot=st.sampled_from([0.0, 0.05, 0.5]),
    others=st.sampled_from([0.0, 0.25, 0.9]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(looks, max_size=60))
def test_whatever_is_seen(steps):
    """`at` of each step is the time since the one before."""
    at, seen = 0.0, []
    for step in steps:
        at += step.at
        seen.append(Observation(at, step.person, step.on_battery, step.hot, step.others))
    uses = run(*seen)
    entered, before = [], Use()
    for use, look in zip(uses, seen, strict=True):
        if use.in_use and not before.in_use:
            entered.append(look.at)
            assert look.at - use.pressing[use.reason] >= PATIENCE[use.reason]
        if before.in_use and not use.in_use:
            calm = [each for each in seen if look.at - FREE_SECONDS <= each.at <= look.at]
            assert not any(each.person or each.on_battery or each.hot >= 0.1 for each in calm)
            assert all(each.others < BUSY_ABOVE for each in calm)
        if any(look.at - since >= PATIENCE[reason] for reason, since in use.pressing.items()):
            assert use.in_use
        before = use
    assert len(entered) <= at / FREE_SECONDS + 1
