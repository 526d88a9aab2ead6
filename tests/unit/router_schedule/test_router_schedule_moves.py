"""Sequences that go from one scheduler to another: what was drawn stays drawn, nothing else stays behind."""

from __future__ import annotations

import random
from itertools import count

import pytest

from shoal.resource import SpeculativeMode
from shoal.wire.messages import KvCapacity, RowOutcome, SamplingParams
from shoal_router.generation import ContextLengthExceeded, FinishReason, GenerationRequest, QueueFull
from shoal_router.schedule.scheduler import Scheduler


def capacity(sequences=8, blocks=64, block_size=4, max_context=128, shares=True):
    return KvCapacity(sequences, blocks, block_size, max_context, 0, shares)


def ask(prompt, max_tokens=50, **kwargs):
    return GenerationRequest("r", tuple(prompt), SamplingParams(), max_tokens, **kwargs)


def answer(scheduler, plan, token=7):
    """The result of a step in which every sampled row draws `token`."""
    outcomes = [
        RowOutcome(row.seq, row.version, row.past_len + len(row.tokens), (token,)) for row in plan.rows if row.sample
    ]
    return scheduler.update(outcomes, 0.0)


def pair(**kwargs):
    ids = count()
    return [Scheduler(capacity(**kwargs), depth=2, ids=ids) for _ in range(2)]


def test_drawn_ids_go_along_as_an_answer_and_the_end_comes_where_it_would_have_come():
    first, second = pair()
    seq = first.add(ask([1, 2, 3], 3))
    answer(first, first.schedule(0.0), token=9)
    second.take_over(first.hand_over(seq))
    plan = second.schedule(0.0)
    (row,) = plan.rows
    assert (row.seq, row.past_len, row.tokens, row.sample) == (seq, 0, (1, 2, 3, 9), True)
    assert row.start.prompt_len == 3, "what was drawn is an answer: penalties count it as one"
    answer(second, plan, token=8)
    (event,) = answer(second, second.schedule(0.0), token=7)
    assert (event.seq, event.finish) == (seq, FinishReason.LENGTH)


def test_what_left_with_rows_in_flight_frees_its_memory_when_they_are_back():
    first, second = pair()
    seq = first.add(ask([1, 2, 3]))
    plan = first.schedule(0.0)
    second.take_over(first.hand_over(seq))
    first.check_integrity()
    assert first.releases() == ()
    assert answer(first, plan) == [], "its result is for nobody"
    assert first.releases() == (seq,)
    assert first.load.free_blocks == first.load.blocks
    first.check_integrity()
    second.check_integrity()


def test_who_came_first_goes_first_wherever_it_goes_on():
    first, second = pair(sequences=1)
    old, young, youngest = first.add(ask([1])), second.add(ask([2])), second.add(ask([3]))
    second.schedule(0.0)
    second.take_over(first.hand_over(old))
    second.cancel(young)
    assert second.crowded_out == (old, youngest)


def test_nobody_is_refused_for_want_of_room_in_the_queue_but_for_want_of_context():
    ids = count()
    first, second = Scheduler(capacity(), depth=1, ids=ids), Scheduler(capacity(1), depth=1, max_waiting=0, ids=ids)
    small = Scheduler(capacity(max_context=32), depth=1, ids=ids)
    second.add(ask([1]))
    with pytest.raises(QueueFull):
        second.add(ask([2]))
    moved = first.hand_over(first.add(ask([3])))
    with pytest.raises(ContextLengthExceeded):
        small.take_over(moved)
    second.take_over(moved)
    assert second.load.waiting == 2


def test_the_prefix_cache_says_how_much_of_a_prompt_it_holds():
    scheduler = Scheduler(capacity(), depth=1)
    prompt = list(range(10))
    assert scheduler.cached(prompt) == 0
    scheduler.add(ask(prompt, 1))
    answer(scheduler, scheduler.schedule(0.0))
    assert scheduler.cached(prompt) == 8
    assert scheduler.cached([*prompt, 7, 1, 2]) == 8
    assert scheduler.cached(prompt[:8]) == 4, "the last id is always computed"
    assert scheduler.cached([5, *prompt]) == 0
    assert Scheduler(capacity(shares=False), depth=1).cached(prompt) == 0


def test_who_waits_only_for_a_step_is_not_crowded_out():
    scheduler = Scheduler(capacity(sequences=2), depth=1)
    seqs = [scheduler.add(ask([number])) for number in range(4)]
    assert scheduler.crowded_out == ()
    assert not scheduler.can_seat(1)
    scheduler.schedule(0.0)
    assert scheduler.crowded_out == tuple(seqs[2:])
    assert scheduler.backlog == 2
    idle = Scheduler(capacity(sequences=2, blocks=4, max_context=16), depth=1)
    assert idle.can_seat(16)
    assert not idle.can_seat(17)


@pytest.mark.parametrize("seed", range(60))
def test_sequences_that_go_to_and_fro_between_pipelines_keep_texts_and_usage(simulation, drafting, plain, seed):
    """Lost pipelines and living ones, speculation, preemption, cancels: each text is that of plain decoding."""
    rng = random.Random(seed)
    context, slots = rng.randint(8, 40), rng.randint(1, 4)
    how = drafting(
        mode=rng.choice([SpeculativeMode.AUTO, SpeculativeMode.FIXED]),
        max_tokens=rng.choice([1, 4]),
        max_chunks=rng.choice([0, 1, 5]),
        accuracy=rng.choice([0.0, 0.8, 1.0]),
        seed=seed,
    )
    shared = {"ids": count(), "requests": {}, "texts": {}, "finished": {}, "cached": {}}

    def fresh():
        size = rng.randint(1, 4)
        return KvCapacity(slots, -(-context // size) + rng.choice([0, 2, 16]), size, context, 0, rng.random() < 0.8)

    def built(**kwargs):
        stages = rng.randint(1, 3)
        return simulation(fresh(), stages, stages, rng.randint(2, 12), drafting=how, **shared, **kwargs)

    first = built()
    second = built(drafter=first.drafter)
    home = {}
    moves = 0
    for _ in range(400):
        here, there = rng.choice([(first, second), (second, first)])
        alive = sorted(seq for seq in set(shared["requests"]) - set(shared["finished"]) if home[seq] is here)
        action = rng.random()
        if action < 0.05:
            prompt = tuple(rng.choices(range(2), k=rng.randint(1, min(context - 2, 16))))
            stop = frozenset(rng.sample(range(23), rng.randint(0, 2)))
            params = SamplingParams(seed=rng.randint(0, 1))
            home[here.add(GenerationRequest("r", prompt, params, rng.choice([None, 2, 20]), stop))] = here
        elif action < 0.06 and alive:
            here.cancel(rng.choice(alive))
        elif action < 0.09 and alive:
            seq = rng.choice(alive)
            # On a pipeline that lives, rows of a sequence that left may still be under way: it does not come back then.
            if seq not in there.scheduler._sequences:
                there.scheduler.take_over(here.scheduler.hand_over(seq))
                home[seq] = there
                moves += 1
        elif action < 0.11:
            for seq in alive:
                if seq not in there.scheduler._sequences:
                    there.scheduler.take_over(here.scheduler.hand_over(seq))
                    home[seq] = there
                    moves += 1
            here.lose_stages(fresh(), rng.randint(1, 3))
        elif action < 0.5:
            here.pump()
        else:
            here.advance(rng.randrange(here.stage_count + 1))
        here.scheduler.check_integrity()
        there.scheduler.check_integrity()
    first.run_dry()
    second.drain()
    first.drain()
    assert moves > 0
    for seq, text in shared["texts"].items():
        if seq in shared["requests"]:
            assert (text, shared["finished"][seq]) == plain(shared["requests"][seq], context)
