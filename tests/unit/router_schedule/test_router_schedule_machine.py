"""The scheduler against a naive model: whatever happens in whatever order, the text is that of plain decoding."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shoal.wire.messages import KvCapacity, SamplingParams
from shoal_router.generation import ContextLengthExceeded, GenerationRequest, QueueFull

capacities = st.builds(
    KvCapacity,
    sequences=st.integers(1, 4),
    blocks=st.integers(6, 14),
    block_size=st.integers(1, 4),
    max_context=st.integers(6, 24),
    bytes=st.just(0),
    shares_blocks=st.booleans(),
)
# Few different ids and seeds, so that prompts share prefixes.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple)


@pytest.fixture
def machine(simulation):
    class Machine(RuleBasedStateMachine):
        @initialize(
            capacity=capacities,
            stages=st.integers(1, 4),
            extra=st.integers(0, 2),
            chunk=st.integers(1, 8),
            waiting=st.integers(0, 8),
        )
        def begin(self, capacity, stages, extra, chunk, waiting):
            self.sim = simulation(capacity, stages, stages + extra, chunk, waiting)

        @rule(
            prompt=prompts,
            seed=st.integers(0, 1),
            max_tokens=st.none() | st.integers(1, 8),
            stop=st.frozensets(st.integers(0, 22), max_size=2),
        )
        def add(self, prompt, seed, max_tokens, stop):
            request = GenerationRequest("r", prompt, SamplingParams(seed=seed), max_tokens, stop)
            full = self.sim.scheduler.load.waiting >= self.sim.max_waiting + self.sim.capacity.sequences
            if len(prompt) >= self.sim.scheduler.max_context:
                with pytest.raises(ContextLengthExceeded):
                    self.sim.add(request)
            elif full:
                with pytest.raises(QueueFull):
                    self.sim.add(request)
            else:
                with suppress(QueueFull):  # some slots are taken: then fewer may wait
                    self.sim.add(request)

        @rule(data=st.data())
        @precondition(lambda self: set(self.sim.requests) - set(self.sim.finished))
        def cancel(self, data):
            alive = sorted(set(self.sim.requests) - set(self.sim.finished))
            self.sim.cancel(data.draw(st.sampled_from(alive)))

        @rule()
        def pump(self):
            self.sim.pump()

        @rule(data=st.data())
        @precondition(lambda self: any(self.sim.links))
        def advance(self, data):
            busy = [number for number, link in enumerate(self.sim.links) if link]
            self.sim.advance(data.draw(st.sampled_from(busy)))

        @rule(steps=st.integers(1, 20))
        def run_for_a_while(self, steps):
            for _ in range(steps):
                self.sim.pump()
                for link in range(self.sim.stage_count + 1):
                    self.sim.advance(link)

        @rule(stages=st.integers(1, 4), block_size=st.integers(1, 4), spare=st.integers(0, 4))
        def lose_a_stage(self, stages, block_size, spare):
            """Frames in flight are gone, the new stages know nothing; texts go on where they were."""
            context = self.sim.scheduler.max_context
            blocks = -(-context // block_size) + spare
            self.sim.capacity = replace(self.sim.capacity, block_size=block_size, blocks=blocks, max_context=context)
            self.sim.stage_count = stages
            self.sim.build_stages()
            assert self.sim.scheduler.reset_for_epoch(self.sim.capacity, depth=stages) == []
            assert self.sim.scheduler.releases() == ()

        @invariant()
        def ledgers_agree(self):
            if hasattr(self, "sim"):
                self.sim.scheduler.check_integrity()

        def teardown(self):
            if hasattr(self, "sim"):
                self.sim.drain()

    return Machine


def test_any_order_of_events_gives_the_text_of_plain_decoding(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
