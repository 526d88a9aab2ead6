"""Whole runs of the scheduler over simulated stages: random ones for safety, clocked ones for how full they keep it."""

from __future__ import annotations

import random

import pytest

from shoal.wire.messages import KvCapacity, SamplingParams
from shoal_router.generation import GenerationRequest


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_200_requests_with_random_cancels_and_lost_stages_keep_their_text_and_lose_no_block(simulation, stages, shares):
    rng = random.Random(f"{stages} {shares}")
    capacity = KvCapacity(sequences=6, blocks=24, block_size=4, max_context=48, bytes=0, shares_blocks=shares)
    sim = simulation(capacity, stages, depth=stages + rng.randint(0, 1), prefill_chunk=16)
    waiting = [
        GenerationRequest(
            str(number),
            tuple(rng.choices(range(2), k=rng.randint(1, 40))),
            SamplingParams(seed=rng.randint(0, 3)),
            rng.choice([None, 1, 5, 20]),
            frozenset(rng.sample(range(23), 1)),
        )
        for number in range(200)
    ]
    while waiting or sim.scheduler.load.in_flight:
        action = rng.random()
        if waiting and action < 0.1:
            sim.add(waiting.pop())
        elif action < 0.12 and (alive := sorted(set(sim.requests) - set(sim.finished))):
            sim.cancel(rng.choice(alive))
        elif action < 0.122:
            sim.build_stages()
            sim.scheduler.reset_for_epoch(capacity, depth=sim.depth)
        else:
            sim.pump()
            sim.advance(rng.randrange(stages + 1))
    sim.drain()
    assert sim.most_in_flight >= stages
    assert len(sim.finished) > 50


def tick(sim) -> list[bool]:
    """One beat in which results return at once and each stage runs one step; says which stages had one."""
    sim.advance(sim.stage_count)
    while sim.pump():
        pass
    return [sim.advance(stage) for stage in reversed(range(sim.stage_count))]


def paged(sequences=16):
    return KvCapacity(sequences, blocks=256, block_size=4, max_context=512, bytes=0, shares_blocks=True)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_stage_works_in_every_beat_when_there_are_as_many_sequences_as_stages(simulation, stages):
    sim = simulation(paged(), stages, depth=stages, prefill_chunk=64)
    for number in range(stages + 1):
        sim.add(GenerationRequest(str(number), (number,), SamplingParams(), 100))
    for _ in range(4 * stages):
        tick(sim)
    assert all(all(tick(sim)) for _ in range(50))
    sim.drain()


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_prompts_chunks_fill_the_stages(simulation, stages):
    """C chunks on N stages take C + N - 1 beats; one chunk after the other would take C x N."""
    sim = simulation(paged(), stages, depth=stages, prefill_chunk=32)
    seq = sim.add(GenerationRequest("long", tuple(number % 7 for number in range(10 * 32)), SamplingParams(), 1))
    beats = 0
    while seq not in sim.finished:
        tick(sim)
        beats += 1
    assert beats == 10 + stages - 1 + 1  # the last beat takes the result in


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_long_prompt_delays_other_users_by_no_more_than_the_chunk_in_each_stage(simulation, stages):
    """While a prompt is prefilled, another user's token takes at most as many beats as the ring has steps in flight."""
    sim = simulation(paged(), stages, depth=stages, prefill_chunk=32)
    talker = sim.add(GenerationRequest("talker", (1,), SamplingParams(), 100))
    for _ in range(3 * stages):
        tick(sim)
    sim.add(GenerationRequest("long", tuple(number % 7 for number in range(400)), SamplingParams(), 1))
    silent = 0
    for _ in range(30):
        before = len(sim.texts[talker])
        tick(sim)
        silent = 0 if len(sim.texts[talker]) > before else silent + 1
        assert silent <= stages
    sim.drain()


def test_a_late_request_runs_as_soon_as_a_slot_is_free(simulation):
    sim = simulation(paged(sequences=4), 2, depth=2, prefill_chunk=16)
    first, *_ = [sim.add(GenerationRequest(str(n), (n,), SamplingParams(), 10 + 20 * n)) for n in range(4)]
    late = sim.add(GenerationRequest("late", (9,), SamplingParams(), 1))
    while late not in sim.finished:
        tick(sim)
    assert list(sim.finished) == [first, late]
    sim.drain()
