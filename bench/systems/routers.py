"""Step loops with other settings over the same stage processes, one open at a time.

Loading a model for each number of drafts that a benchmark compares would take longer than the benchmark. A step loop
that is closed keeps what it has learned of its drafts; what steps cost it measures anew when it is opened again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench.systems.synchronous_draft import SynchronousDrafter
from shoal.resource import SpeculativeMode
from shoal.vocabulary import Vocabulary
from shoal_router.draft.choice import drafter_for
from shoal_router.draft.model import ModelDrafter
from shoal_router.pipeline.interface import PipelineOpener
from shoal_router.schedule.guarded import GuardedDrafter
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings

_READY_SECONDS = 180.0


class Routers:
    """Everything on one event loop. `draft_waits`: draft as the paper does, by the model alone and waiting for it."""

    def __init__(
        self,
        opener: PipelineOpener,
        settings: StepLoopSettings,
        *,
        draft_address: str | None,
        draft_waits: bool,
        vocabulary: Vocabulary,
    ) -> None:
        self._opener = opener
        self._settings = settings
        self._draft_address = draft_address
        self._draft_waits = draft_waits
        self._vocabulary = vocabulary
        self._known: dict[SpeculationSettings, StepLoop] = {}
        self._open: StepLoop | None = None
        self._waiting: list[SynchronousDrafter] = []

    def check(self) -> None:
        """Raises ResourceError when a drafter that is waited for has failed: its router goes on without drafts."""
        for drafter in self._waiting:
            if drafter.failure is not None:
                raise drafter.failure

    async def use(self, speculation: SpeculationSettings) -> StepLoop:
        """The step loop with these settings, open."""
        steps = self._known.get(speculation)
        if steps is None:
            steps = self._known[speculation] = await self._make(speculation)
        if steps is not self._open:
            if self._open is not None:
                await self._open.stop()
            self._open = steps
            await steps.start()
            await steps.wait_ready(_READY_SECONDS)
        return steps

    async def _make(self, speculation: SpeculationSettings) -> StepLoop:
        settings = replace(self._settings, speculation=speculation)
        address = self._draft_address
        if speculation.mode is SpeculativeMode.OFF:
            return StepLoop(self._opener, settings)
        if self._draft_waits and address is not None:
            drafter = await asyncio.to_thread(SynchronousDrafter, address, self._vocabulary)
            self._waiting.append(drafter)
            return StepLoop(self._opener, settings, drafter=GuardedDrafter(drafter))
        if address is None:
            return StepLoop(self._opener, settings, drafter=drafter_for(None))
        model = ModelDrafter(address, self._vocabulary)
        steps = StepLoop(self._opener, settings, drafter=drafter_for(model))
        model.when_more(steps.nudge)
        await model.start()
        async with asyncio.timeout(_READY_SECONDS):
            await model.connected.wait()
        return steps
