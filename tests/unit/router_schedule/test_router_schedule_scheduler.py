"""The scheduler's rules one by one; that they hold together is the state machine's business."""

from __future__ import annotations

import pytest

from shoal.wire.messages import KvCapacity, RowOutcome, SamplingParams
from shoal_router.generation import ContextLengthExceeded, GenerationRequest, QueueFull
from shoal_router.schedule.plan import OutcomeMismatch
from shoal_router.schedule.scheduler import Scheduler


def capacity(sequences=8, blocks=64, block_size=4, max_context=128, shares=True):
    return KvCapacity(sequences, blocks, block_size, max_context, 0, shares)


def ask(prompt, max_tokens=50, **kwargs):
    return GenerationRequest("r", tuple(prompt), SamplingParams(), max_tokens, **kwargs)


def answer(scheduler, plan, token=7, now=0.0):
    """The result of a step in which every sampled row draws `token`."""
    outcomes = [
        RowOutcome(row.seq, row.version, row.past_len + len(row.tokens), (token,)) for row in plan.rows if row.sample
    ]
    return scheduler.update(outcomes, now)


def in_flight(scheduler):
    plans = []
    while (plan := scheduler.schedule(0.0)) is not None:
        plans.append(plan)
    return plans


@pytest.mark.parametrize(("sequences", "depth", "sizes"), [(5, 4, [2, 1, 1, 1]), (8, 2, [4, 4]), (2, 3, [1, 1])])
def test_decoding_sequences_are_spread_evenly_over_the_steps_in_flight(sequences, depth, sizes):
    scheduler = Scheduler(capacity(), depth=depth)
    for index in range(sequences):
        scheduler.add(ask([index]))
    plan = scheduler.schedule(0.0)
    assert scheduler.schedule(0.0) is None
    answer(scheduler, plan)
    assert [len(plan.rows) for plan in in_flight(scheduler)] == sizes


def test_a_lopsided_split_levels_out_after_sequences_end():
    scheduler = Scheduler(capacity(), depth=2)
    for index in range(8):
        scheduler.add(ask([index]))
    answer(scheduler, scheduler.schedule(0.0))
    small, large = in_flight(scheduler)
    for row in small.rows[1:]:
        scheduler.cancel(row.seq)
    answer(scheduler, small)
    again = scheduler.schedule(0.0)
    answer(scheduler, large)
    refilled = scheduler.schedule(0.0)
    assert (len(again.rows), len(refilled.rows)) == (1, 3)
    answer(scheduler, again)
    assert len(scheduler.schedule(0.0).rows) == 2


def test_decode_rows_come_first_and_chunks_fill_the_budget():
    scheduler = Scheduler(capacity(), depth=1, prefill_chunk=8)
    scheduler.add(ask([1]))
    answer(scheduler, scheduler.schedule(0.0))
    scheduler.add(ask(range(20)))
    plan = scheduler.schedule(0.0)
    assert [len(row.tokens) for row in plan.rows] == [1, 7]
    assert [row.sample for row in plan.rows] == [True, False]
    assert (plan.decode_rows, plan.prefill_tokens) == (1, 7)


def test_chunks_of_one_prompt_follow_each_other_without_waiting():
    scheduler = Scheduler(capacity(), depth=2, prefill_chunk=8)
    scheduler.add(ask(range(30)))
    plans = in_flight(scheduler)
    assert [(plan.rows[0].past_len, plan.rows[0].sample) for plan in plans] == [(0, False), (8, False), (16, False)]
    for plan in plans:
        assert answer(scheduler, plan) == []
    last = scheduler.schedule(0.0)
    assert (last.rows[0].past_len, len(last.rows[0].tokens), last.rows[0].sample) == (24, 6, True)


def test_a_long_prompt_does_not_keep_a_decoding_sequence_from_its_next_step():
    scheduler = Scheduler(capacity(max_context=256), depth=2, prefill_chunk=8)
    talker = scheduler.add(ask([1]))
    answer(scheduler, scheduler.schedule(0.0))
    scheduler.add(ask(range(200)))
    plans = in_flight(scheduler)
    assert len(plans) == 2
    for _ in range(5):
        ahead = sum(len(row.tokens) for plan in plans for row in plan.rows)
        assert ahead <= 8, "a token waits for more than one chunk"
        done = plans.pop(0)
        answer(scheduler, done)
        plans += in_flight(scheduler)
        if any(row.seq == talker for row in done.rows):
            assert any(row.seq == talker for row in plans[-1].rows), "it waits for a chunk that could not overtake it"


def test_only_the_first_row_introduces_a_sequence():
    scheduler = Scheduler(capacity(), depth=1, prefill_chunk=4)
    scheduler.add(ask(range(6)))
    first = scheduler.schedule(0.0)
    answer(scheduler, first)
    second = scheduler.schedule(0.0)
    assert first.rows[0].start.prompt_len == 6
    assert second.rows[0].start is None


def test_a_reused_beginning_is_not_computed_and_its_ids_travel_with_the_introduction():
    scheduler = Scheduler(capacity(), depth=1)
    scheduler.add(ask(range(10), 1))
    answer(scheduler, scheduler.schedule(0.0))
    scheduler.add(ask([*range(9), 99]))
    row = scheduler.schedule(0.0).rows[0]
    assert row.past_len == 8
    assert row.start.history == tuple(range(8))
    assert row.tokens == (8, 99)


def test_without_a_prefix_cache_every_prompt_is_computed():
    scheduler = Scheduler(capacity(), depth=1, prefix_cache=False)
    for _ in range(2):
        scheduler.add(ask(range(10), 1))
        plan = scheduler.schedule(0.0)
        assert plan.rows[0].past_len == 0
        assert len(plan.rows[0].blocks) == 3
        assert answer(scheduler, plan)[0].cached_tokens == 0


def test_the_last_token_of_a_known_prompt_is_computed_all_the_same():
    scheduler = Scheduler(capacity(), depth=1)
    scheduler.add(ask(range(8), 1))
    answer(scheduler, scheduler.schedule(0.0))
    scheduler.add(ask(range(8)))
    row = scheduler.schedule(0.0).rows[0]
    assert (row.past_len, row.tokens) == (4, (4, 5, 6, 7))
    events = scheduler.update([RowOutcome(row.seq, row.version, 8, (3,))], 0.0)
    assert events[0].cached_tokens == 4


def test_slots_travel_without_block_tables():
    scheduler = Scheduler(capacity(sequences=2, shares=False), depth=1)
    scheduler.add(ask([1]))
    scheduler.add(ask([2]))
    rows = scheduler.schedule(0.0).rows
    assert {row.slot for row in rows} == {0, 1}
    assert all(row.blocks == () for row in rows)


def test_a_sequence_waits_for_a_slot_and_gets_the_one_that_was_released():
    scheduler = Scheduler(capacity(sequences=1, shares=False), depth=2)
    first, second = scheduler.add(ask([1])), scheduler.add(ask([2]))
    plan = scheduler.schedule(0.0)
    assert [row.seq for row in plan.rows] == [first]
    scheduler.cancel(first)
    assert scheduler.schedule(0.0) is None, "the slot is still in use by a frame in flight"
    assert scheduler.releases() == ()
    assert answer(scheduler, plan) == []
    assert [row.seq for row in scheduler.schedule(0.0).rows] == [second]
    assert scheduler.releases() == (first,)


def test_the_queue_is_first_come_first_served_even_if_a_later_one_would_fit():
    scheduler = Scheduler(capacity(blocks=8, sequences=4, max_context=32), depth=3)
    scheduler.add(ask(range(20)))
    large, small = scheduler.add(ask(range(100, 120))), scheduler.add(ask([1]))
    plan = scheduler.schedule(0.0)
    assert len(plan.rows) == 1
    assert scheduler.schedule(0.0) is None
    scheduler.cancel(plan.rows[0].seq)
    answer(scheduler, plan)
    assert [row.seq for row in scheduler.schedule(0.0).rows] == [large, small]


def test_when_blocks_run_out_the_latest_sequence_gives_way_and_is_computed_again():
    scheduler = Scheduler(capacity(blocks=4, sequences=2, max_context=16), depth=1)
    first, second = scheduler.add(ask(range(4))), scheduler.add(ask(range(50, 54)))
    answer(scheduler, scheduler.schedule(0.0))
    preempted = None
    for _ in range(20):
        plan = scheduler.schedule(0.0)
        if plan is None:
            break
        if released := scheduler.releases():
            preempted = released
            break
        answer(scheduler, plan)
    assert preempted == (second,)
    assert [row.seq for row in plan.rows] == [first]
    scheduler.check_integrity()
    scheduler.cancel(first)
    answer(scheduler, plan)
    row = scheduler.schedule(0.0).rows[0]
    assert row.seq == second
    assert row.version == 1
    assert row.start.prompt_len == 4
    assert len(row.tokens) + row.past_len > 4, "the answer so far is computed again"


def test_a_prompt_beyond_the_context_is_refused_with_both_sizes():
    scheduler = Scheduler(capacity(max_context=16), depth=1)
    with pytest.raises(ContextLengthExceeded) as refused:
        scheduler.add(ask(range(16)))
    assert (refused.value.prompt_tokens, refused.value.max_context) == (16, 16)
    scheduler.add(ask(range(15)))


def test_the_context_is_no_larger_than_the_pool():
    assert Scheduler(capacity(blocks=3, block_size=4, max_context=128), depth=1).max_context == 12


def test_a_full_queue_says_when_to_come_back():
    scheduler = Scheduler(capacity(sequences=1), depth=1, max_waiting=2)
    scheduler.add(ask([1], 1))
    plan = scheduler.schedule(10.0)
    answer(scheduler, plan, now=15.0)
    for index in range(3):
        scheduler.add(ask([index]))
    with pytest.raises(QueueFull) as refused:
        scheduler.add(ask([9]))
    assert refused.value.retry_after == pytest.approx(20.0)  # 5 s a sequence, 3 before it and itself


def test_a_sequence_ends_at_its_stop_token_and_at_its_limit():
    scheduler = Scheduler(capacity(), depth=1)
    scheduler.add(ask([1], 10, stop_token_ids=frozenset({5})))
    assert [(event.tokens, event.finish) for event in answer(scheduler, scheduler.schedule(0.0), 4)] == [((4,), None)]
    assert [(event.tokens, event.finish) for event in answer(scheduler, scheduler.schedule(0.0), 5)] == [((5,), "stop")]
    scheduler.add(ask([1], 1))
    assert [(event.tokens, event.finish) for event in answer(scheduler, scheduler.schedule(0.0))] == [((7,), "length")]


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [RowOutcome(0, 0, 2, (7,))],
        [RowOutcome(0, 1, 1, (7,))],
        [RowOutcome(0, 0, 1, ())],
        [RowOutcome(0, 0, 1, (7, 8))],
        [RowOutcome(1, 0, 1, (7,))],
    ],
)
def test_case_23_a_result_that_does_not_answer_the_step_is_refused(outcomes):
    scheduler = Scheduler(capacity(), depth=1)
    scheduler.add(ask([1]))
    scheduler.schedule(0.0)
    with pytest.raises(OutcomeMismatch):
        scheduler.update(outcomes, 0.0)


def test_a_result_that_answers_only_some_rows_commits_none_of_them():
    """Otherwise a replay would go on behind a token that nobody was given."""
    scheduler = Scheduler(capacity(), depth=1)
    scheduler.add(ask([1]))
    scheduler.add(ask([2]))
    scheduler.schedule(0.0)
    with pytest.raises(OutcomeMismatch):
        scheduler.update([RowOutcome(0, 0, 1, (7,))], 0.0)
    scheduler.reset_for_epoch(capacity(), depth=1)
    assert [row.tokens for row in scheduler.schedule(0.0).rows] == [(1,), (2,)]


def test_a_slot_needs_no_room_beside_itself():
    scheduler = Scheduler(capacity(sequences=2, blocks=8, max_context=16, shares=False), depth=2)
    scheduler.add(ask(range(15)))
    scheduler.add(ask(range(15)))
    assert len(scheduler.schedule(0.0).rows) == 2


def test_a_result_without_a_step_is_refused():
    with pytest.raises(OutcomeMismatch, match="no step is in flight"):
        Scheduler(capacity(), depth=1).update([], 0.0)


def test_cancelling_what_is_over_or_unknown_does_nothing():
    scheduler = Scheduler(capacity(), depth=1)
    seq = scheduler.add(ask([1], 1))
    scheduler.cancel(99)
    answer(scheduler, scheduler.schedule(0.0))
    scheduler.cancel(seq)
    assert scheduler.releases() == (seq,)
    scheduler.check_integrity()


def test_after_a_reset_everything_is_computed_again_and_nothing_drawn_is_lost():
    scheduler = Scheduler(capacity(), depth=2)
    seq = scheduler.add(ask([1, 2, 3]))
    answer(scheduler, scheduler.schedule(0.0), token=9)
    scheduler.schedule(0.0)
    assert scheduler.reset_for_epoch(capacity(), depth=3) == []
    row = scheduler.schedule(0.0).rows[0]
    assert (row.seq, row.past_len, row.tokens, row.sample) == (seq, 0, (1, 2, 3, 9), True)
    assert row.start.prompt_len == 3


def test_a_reset_gives_up_what_a_smaller_pipeline_cannot_hold():
    scheduler = Scheduler(capacity(), depth=1)
    large, small = scheduler.add(ask(range(40))), scheduler.add(ask(range(4)))
    assert scheduler.reset_for_epoch(capacity(max_context=32), depth=1) == [large]
    assert [row.seq for row in scheduler.schedule(0.0).rows] == [small]
    scheduler.check_integrity()


@pytest.mark.parametrize("request_", [ask([]), ask([1], 0)])
def test_a_request_without_prompt_or_answer_is_a_defect_of_the_caller(request_):
    with pytest.raises(ValueError, match="at least one token"):
        Scheduler(capacity(), depth=1).add(request_)


def test_a_later_sequence_never_takes_memory_from_an_earlier_one():
    scheduler = Scheduler(capacity(blocks=4, sequences=2, max_context=16), depth=1)
    first, second = scheduler.add(ask(range(3))), scheduler.add(ask(range(50, 54)))
    while True:
        plan = scheduler.schedule(0.0)
        if len(plan.rows) < 2:
            break
        answer(scheduler, plan)
    assert [row.seq for row in plan.rows] == [first], "the later one waits with what it has"
    assert scheduler.releases() == ()
    scheduler.check_integrity()
    answer(scheduler, plan)
    assert [row.seq for row in scheduler.schedule(0.0).rows] == [first]
    assert scheduler.releases() == (second,)


def test_a_newcomer_leaves_every_running_sequence_a_block_to_grow():
    scheduler = Scheduler(capacity(blocks=4, sequences=2, max_context=16), depth=2)
    first, second = scheduler.add(ask(range(8), 1)), scheduler.add(ask(range(50, 58), 1))
    plan = scheduler.schedule(0.0)
    assert [row.seq for row in plan.rows] == [first], "two blocks are free, but the first needs one of them next"
    assert scheduler.schedule(0.0) is None
    answer(scheduler, plan)
    assert [row.seq for row in scheduler.schedule(0.0).rows] == [second]


def test_after_a_reset_to_blocks_of_another_size_prefixes_are_told_apart_anew():
    scheduler = Scheduler(capacity(block_size=2), depth=1, prefill_chunk=6)
    scheduler.add(ask([1, 2, 3, 4, 5, 6]))
    second = scheduler.add(ask([1, 2, 9, 4, 5, 6]))
    answer(scheduler, scheduler.schedule(0.0))
    assert [row.seq for row in scheduler.schedule(0.0).rows if row.start is not None] == [second]
    scheduler.reset_for_epoch(capacity(block_size=3), depth=1)
    answer(scheduler, scheduler.schedule(0.0))
    first_rows = [row for plan in in_flight(scheduler) for row in plan.rows if row.start is not None]
    assert [(row.seq, row.past_len) for row in first_rows] == [(second, 0)], (
        "the first two ids are the same, the first block of three is not"
    )
