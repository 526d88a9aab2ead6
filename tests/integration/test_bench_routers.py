"""Routers that take turns on one ring of real gRPC stages: the same text by each, with drafts where they should be."""

from __future__ import annotations

import asyncio

from bench.systems.routers import Routers
from shoal.resource import SpeculativeMode
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoopSettings
from shoal_stage.draft.fake import VOCABULARY, start_draft
from shoal_stage.engine.fake import greedy_text
from shoal_stage.server.fake import fake_pipeline

PROMPT = (3, 1, 4)
OFF = SpeculationSettings()
FIXED = SpeculationSettings(SpeculativeMode.FIXED, 3, 1)
AUTO = SpeculationSettings(SpeculativeMode.AUTO)


async def test_routers_take_turns_on_one_ring_and_say_the_same():
    async with fake_pipeline(stages=2) as stages, start_draft() as draft, asyncio.timeout(60):
        plan = planned_at([stage.address for stage in stages], [stage.blocks for stage in stages], None)
        # Drafts are not waited for here: whoever waits blocks this event loop, which is the draft server's, too.
        routers = Routers(
            RingOpener(FixedPlan(plan)),
            StepLoopSettings(prefix_cache=False),
            draft_address=draft.address,
            draft_waits=False,
            vocabulary=VOCABULARY,
        )
        sent = []
        for speculation in (OFF, FIXED, AUTO, OFF, FIXED):
            steps = await routers.use(speculation)
            assert await routers.use(speculation) is steps
            request = GenerationRequest("bench", PROMPT, SamplingParams(temperature=0.0), 40)
            ids = [token async for delta in steps.generate(request) for token in delta.tokens]
            assert ids == greedy_text(PROMPT, 40)
            sent.append(sum(source.proposed for source in steps.speculation.sources.values()))
        assert sent[0] == sent[3] == 0
        assert 0 < sent[1] < sent[4], "a router that comes back goes on counting"
        await steps.stop()
