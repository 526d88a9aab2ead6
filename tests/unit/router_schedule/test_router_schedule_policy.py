"""What speculation decides by: acceptance from outcomes, costs from measurements, the stop rule against brute force."""

from __future__ import annotations

from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.wire.messages import StageTiming
from shoal_router.schedule.acceptance import Acceptance
from shoal_router.schedule.costs import StepCosts
from shoal_router.schedule.policy import (
    MARGIN,
    SpeculationSettings,
    chunk,
    credits,
    may_run_ahead,
    may_wait,
    price,
    widths,
)


def timings(*milliseconds):
    return [StageTiming(stage, int(each * 1000)) for stage, each in enumerate(milliseconds)]


def measured(stages, per_token=0.1, network=0.0, widths=(1, 2, 4, 8)):
    """Costs of stages that take these milliseconds for one token, and `per_token` of that for each further one."""
    costs = StepCosts(len(stages))
    for _ in range(30):
        for tokens in widths:
            times = [each * (1 + per_token * (tokens - 1)) for each in stages]
            costs.observe(tokens, timings(*times), (sum(times) + network) / 1000)
    return costs


# ---- costs


def test_costs_are_those_that_were_measured():
    costs = measured([10, 30], per_token=0.1, network=20)
    assert costs.cycle(1) == pytest.approx(0.060, rel=0.02)
    assert costs.cycle(8) == pytest.approx(0.040 * 1.7 + 0.020, rel=0.02)
    assert costs.bottleneck(1) == pytest.approx(0.030, rel=0.02)
    assert costs.bottleneck(8) == pytest.approx(0.030 * 1.7, rel=0.02)
    assert costs.bottleneck(6) == pytest.approx(0.030 * 1.5, rel=0.02), "what was not seen lies between its neighbours"


def test_before_a_second_width_was_seen_the_slope_is_assumed():
    costs = measured([10, 10], widths=(1,))
    assert costs.cycle(1) == pytest.approx(0.020)
    assert costs.cycle(2) == pytest.approx(1.08 * 0.020)
    assert measured([10, 10], widths=(4,)).cycle(1) == pytest.approx(0.020 * 1.3 / 1.24)


def test_a_kernels_jump_is_seen_where_it_is():
    """INT8 weights on AVX2: four tokens cost a fifth more than one, five twice as much, eight little more than five."""
    costs = StepCosts(2)
    for _ in range(20):
        for tokens, each in ((1, 44), (2, 46), (3, 50), (4, 53), (5, 90), (8, 92)):
            costs.observe(tokens, timings(each, each), each / 500)
    good = [[0.8**count for count in range(1, 9)]]
    assert widths(good, costs, steps=1, budget=8) == [3]
    assert widths([[0.99] * 8], costs, steps=1, budget=8) == [8], "beyond the jump it pays again"
    assert widths([[0.99] * 8], costs, steps=1, budget=4) == [3]


def test_a_jump_is_expected_where_steps_that_are_alike_had_it():
    one = StepCosts(2)
    for _ in range(20):
        for tokens, each in ((4, 50), (5, 100)):
            one.observe(tokens, timings(each, each), each / 500)
    several = StepCosts(2, like=one)
    several.observe(4, timings(60, 60), 0.120)
    assert several.cycle(5) == pytest.approx(0.240)
    assert several.bottleneck(5) == pytest.approx(0.120)
    several.observe(5, timings(75, 75), 0.150)
    assert several.cycle(5) == pytest.approx(0.150), "what was measured counts"


def test_a_width_that_met_other_work_the_first_time_is_tried_again():
    costs = StepCosts(2)
    for tokens, each in ((1, 44), (2, 46), (3, 90)):  # the third beside the draft model
        costs.observe(tokens, timings(each, each), each / 500)
    for _ in range(100):
        costs.observe(2, timings(46, 46), 0.092)
    assert costs.cycle(3) < 0.110, "nobody would ever try it"
    costs.observe(3, timings(50, 50), 0.100)
    assert costs.cycle(3) == pytest.approx(0.100, rel=0.02), "of the first few the fastest counts"


def test_a_jump_that_was_often_measured_is_forgotten_slowly_and_seen_again_at_once():
    costs = StepCosts(2)
    for _ in range(10):
        for tokens, each in ((4, 53), (5, 90)):
            costs.observe(tokens, timings(each, each), each / 500)
    before = costs.cycle(5)
    for _ in range(20):
        costs.observe(4, timings(53, 53), 0.106)
    assert before > costs.cycle(5) > 0.150
    costs.observe(5, timings(90, 90), 0.180)
    assert costs.cycle(5) == pytest.approx(before, rel=0.02)


def test_what_else_ran_on_a_pc_is_no_cost_of_the_tokens():
    costs = measured([10, 10], widths=(1, 2, 4))
    for _ in range(30):
        costs.observe(4, timings(26, 26), 0.052)
        costs.observe(4, timings(13, 13), 0.026)
    assert costs.cycle(4) == pytest.approx(0.026, rel=0.15)


def test_old_costs_fade():
    costs = measured([10, 10])
    for _ in range(200):
        for tokens in (1, 4):
            costs.observe(tokens, timings(*(30 * (1 + 0.1 * (tokens - 1)) for _ in range(2))), 0.060)
    assert costs.cycle(1) == pytest.approx(0.060, rel=0.05)


def test_a_prompts_chunk_says_nothing_about_decoding():
    costs = measured([10, 10])
    before = costs.cycle(4)
    costs.observe(256, timings(300, 300), 0.6)
    costs.observe(4, [], 0.6)
    assert costs.cycle(4) == before


@pytest.mark.parametrize(
    ("stages", "network", "depth"),
    [([10, 10], 1, 2), ([10] * 4, 2, 4), ([5, 15], 1, 1), ([20], 0, 1), ([10, 10, 10], 400, 43), ([10, 10], 60, 8)],
)
def test_the_ring_is_full_with_as_many_steps_as_stages_on_a_lan_and_with_the_round_trips_worth_on_a_wan(
    stages, network, depth
):
    costs = measured(stages, network=network)
    assert costs.depth == depth
    assert credits(SpeculationSettings(), costs) == min(depth, 24)
    assert credits(SpeculationSettings(max_chunks=3), costs) == 3


def test_an_unmeasured_ring_has_its_stages_as_depth():
    assert StepCosts(3).depth == 3
    assert StepCosts(3).bottleneck(1) == pytest.approx(StepCosts(3).cycle(1) / 3)


@pytest.mark.parametrize("bad", [{"max_tokens": 0}, {"max_chunks": 25}, {"max_chunks": -1}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match="out of range"):
        SpeculationSettings(**bad)


# ---- acceptance


def test_a_constant_confidence_becomes_the_rate_that_was_observed():
    acceptance = Acceptance(Acceptance())
    for number in range(100):
        acceptance.learn("ngram", 0, 0.8, number % 2 == 0)
    assert acceptance.estimate("ngram", 0, 0.8) == pytest.approx(0.5, abs=0.1)


def test_a_source_keeps_telling_its_good_days_from_bad():
    acceptance = Acceptance(Acceptance())
    for _ in range(50):
        acceptance.learn("suffix", 0, 0.9, False)
        acceptance.learn("suffix", 0, 0.9, True)
    assert acceptance.estimate("suffix", 0, 0.9) > 3 * acceptance.estimate("suffix", 0, 0.2)


def test_a_tail_of_ngrams_that_misses_says_nothing_about_the_draft_model():
    acceptance = Acceptance(Acceptance())
    for _ in range(50):
        acceptance.learn("ngram", 4, 0.8, False)
    assert acceptance.estimate("model", 0, 0.8) == pytest.approx(0.8)
    assert acceptance.estimate("ngram", 0, 0.8) == pytest.approx(0.8)
    assert acceptance.estimate("ngram", 4, 0.8) < 0.1


def test_a_new_sequence_starts_from_what_all_taught_and_goes_its_own_way():
    shared = Acceptance()
    first, second = Acceptance(shared), Acceptance(shared)
    for _ in range(50):
        first.learn("ngram", 0, 0.8, False)
    assert second.estimate("ngram", 0, 0.8) < 0.3
    for _ in range(30):
        second.learn("ngram", 0, 0.8, True)
    assert second.estimate("ngram", 0, 0.8) > 0.8
    assert first.estimate("ngram", 0, 0.8) < 0.2


def test_an_estimate_is_never_certainty():
    acceptance = Acceptance(Acceptance())
    for _ in range(50):
        acceptance.learn("ngram", 0, 0.5, True)
    assert acceptance.estimate("ngram", 0, 1.0) == 0.99


# ---- the stop rule


def rate(taken, chances, costs, steps):
    """Tokens a second of a step with these many drafts a row, among `steps` like it."""
    tokens = len(chances) + sum(taken)
    expected = len(chances) + sum(sum(row[:count]) for row, count in zip(chances, taken, strict=True))
    return expected / max(costs.cycle(tokens), steps * costs.bottleneck(tokens))


falling = st.lists(st.floats(0.05, 0.99), max_size=4).map(lambda each: list(accumulate(each, mul)))


@settings(max_examples=150, deadline=None)
@given(
    chances=st.lists(falling, min_size=1, max_size=3),
    per_token=st.sampled_from([0.02, 0.08, 0.3, 1.0]),
    stages=st.sampled_from([(10,), (10, 10), (5, 15), (10, 10, 10)]),
    network=st.sampled_from([0, 2, 100]),
    crowded=st.booleans(),
)
def test_the_stop_rule_finds_the_highest_rate_up_to_its_margin(chances, per_token, stages, network, crowded):
    costs = measured(list(stages), per_token, network, widths=(1, 2, 3, 4, 6, 8, 12))
    steps = 40 if crowded else 1
    best = max(rate(each, chances, costs, steps) for each in product(*(range(len(row) + 1) for row in chances)))
    for margin, least in ((1.0, 0.995), (MARGIN, 1 / MARGIN)):
        taken = widths(chances, costs, steps=steps, budget=100, margin=margin)
        assert rate(taken, chances, costs, steps) >= best * least


def test_the_budget_goes_to_the_likeliest_drafts():
    costs = measured([10, 10], per_token=0.01)
    chances = [[0.9, 0.8, 0.1], [], [0.7, 0.6, 0.5]]
    assert widths(chances, costs, steps=1, budget=3) == [2, 0, 1]
    assert widths(chances, costs, steps=1, budget=0) == [0, 0, 0]


def test_a_draft_that_only_just_pays_is_left_out():
    """Chances are estimates, and the likeliest-looking ones are overestimated."""
    costs = measured([10, 10], per_token=0.1)
    just = 1.1 * price(costs, 1, 1)
    assert widths([[just]], costs, steps=1, budget=9) == [0]
    assert widths([[just]], costs, steps=1, budget=9, margin=1.0) == [1]


def test_more_rows_beside_it_make_a_draft_dearer():
    costs = measured([10, 10], per_token=0.1)
    assert len({widths([[0.5]] + [[]] * others, costs, steps=2, budget=9)[0] for others in (0, 20)}) == 2


def test_verified_tokens_are_nearly_free_where_the_network_takes_the_time():
    near, far = measured([10, 10], 0.1, 0), measured([10, 10], 0.1, 400)
    chances = [[0.8**n for n in range(1, 33)]]
    assert widths(chances, far, steps=1, budget=99)[0] > widths(chances, near, steps=1, budget=99)[0] + 4
    assert price(far, 1, 1) < price(near, 1, 1) / 10


def may(chance, costs, steps, due=1.0):
    return may_run_ahead(chance, costs, steps=steps, due=due)


def test_a_row_runs_ahead_where_the_ring_has_room_for_it():
    balanced, one, uneven = measured([10, 10], network=1), measured([20]), measured([2, 30])
    assert may(0.3, balanced, 2)
    assert not may(0.01, balanced, 2), "stages are other people's PCs"
    assert not may(0.9, one, 2), "a single stage has no room beside the step it computes"
    assert not may(0.4, uneven, 2), "it would stand before the slow stage when the head comes"
    far = measured([10, 10, 10], network=400)
    assert may(0.1, far, 20)
    assert not may(0.1, far, 60)


def test_a_row_that_comes_late_stands_before_the_head_that_may_prove_it_wrong():
    balanced = measured([10, 10], network=1)
    assert may(0.6, balanced, 2, due=0.010)
    assert not may(0.6, balanced, 2, due=0.002)
    assert may(0.9, balanced, 2, due=0.004)
    assert not may(0.99, balanced, 2, due=-0.001)


def test_a_row_waits_for_a_draft_that_is_worth_it():
    costs = measured([10, 10], per_token=0.05)
    assert may_wait([], 0.8, 0.004, costs, users=1)
    assert not may_wait([], 0.8, 0.020, costs, users=1), "it takes longer than it gives"
    assert not may_wait([], 0.1, 0.004, costs, users=1), "it would be wrong"
    assert not may_wait([0.8, 0.64, 0.51, 0.41, 0.33], 0.8, 0.004, costs, users=1), "there are enough"
    assert not may_wait([], 0.6, 0.007, costs, users=2), "in a full ring a stage stands still meanwhile"
    assert may_wait([], 0.6, 0.007, costs, users=1)


@settings(max_examples=100, deadline=None)
@given(chance=st.floats(0.05, 0.98), stages=st.integers(2, 4), per_token=st.sampled_from([0.02, 0.08, 0.3]))
def test_rows_that_follow_each_other_have_the_length_of_the_highest_rate(chance, stages, per_token):
    """Simulated: rows of `m` tokens leave one after the other until one is wrong; then the ring is a cycle behind."""
    costs = measured([10] * stages, per_token, widths=(1, 2, 3, 4, 6, 8))

    def seconds(m):
        """From one wrong guess to the next, over the number of rows that are right before it."""
        total, right = 0.0, 1.0
        for _ in range(2000):
            right *= chance**m
            total += right
        return costs.cycle(m) + total * costs.bottleneck(m)

    best = min(seconds(m) for m in range(1, 10))
    assert seconds(chunk([chance] * 8, costs, users=1)) <= best * 1.001


def test_a_ring_that_stands_idle_is_filled_with_shorter_rows():
    costs = measured([10] * 4)
    lengths = [chunk([0.8] * 16, costs, users) for users in (1, 2, 4)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]
    assert chunk([0.3] * 8, costs, 1) < chunk([0.9] * 8, costs, 1)
