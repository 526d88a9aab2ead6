"""Measuring once, after the stages have loaded, what a lone user gets: time to the first token, then tokens a second.

It is an ordinary request behind the API, so it takes the road of every other one. It waits until nobody asks, gives up
its place as soon as somebody does, and begins again later; a plan that puts stages elsewhere is measured anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from shoal.errors import PlanError
from shoal.measured import Measured, placement_of
from shoal.plan.document import Plan
from shoal.tasks import end_task
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationError, GenerationRequest, Generator

TEXT: Final = (
    "On the first day of the month the keeper of the lighthouse wrote down what he had seen from its gallery: four "
    "fishing boats that came home before the rain, a grey seal on the rocks below, and far out, where the water turns "
    "dark, the lights of a ship that he did not know. In the evening he"
)
TOKENS: Final = 33
LOOK_SECONDS: Final = 5.0
SEED: Final = 20261130

log = logging.getLogger(__name__)


class Measurer:
    """See Companion. `measured` is None until there is something to tell of the plan in force."""

    def __init__(
        self,
        generator: Generator,
        read_plan: Callable[[], Plan],
        prompt: tuple[int, ...],
        *,
        clock: Callable[[], float] = time.monotonic,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.measured: Measured | None = None
        self._generator = generator
        self._read_plan = read_plan
        self._prompt = prompt
        self._clock = clock
        self._look_seconds = look_seconds
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look for a quiet moment."""
        self._task = asyncio.create_task(self._keep_measured(), name="measure")

    async def stop(self) -> None:
        """End; may be called twice."""
        await end_task(self._task)
        self._task = None

    async def _keep_measured(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self._look()
            except (PlanError, GenerationError) as error:
                log.debug("not measured yet: %s", error)
            except Exception:
                log.exception("measuring met a defect and is given up; answers do not need it")
                return

    async def _look(self) -> None:
        placement = placement_of(self._read_plan())
        if self.measured is not None and self.measured.placement == placement:
            return
        self.measured = None
        if self._quiet(0):
            self.measured = await self._measure(placement)

    def _quiet(self, mine: int) -> bool:
        status = self._generator.status()
        return status.ready and status.running + status.waiting <= mine

    async def _measure(self, placement: str) -> Measured | None:
        """None: somebody asked meanwhile, or the plan changed."""
        request = GenerationRequest(
            "measure", self._prompt, SamplingParams(temperature=0.7, seed=SEED), TOKENS, group="measure"
        )
        began, first, last, after = self._clock(), 0.0, 0.0, 0
        async with aclosing(self._generator.generate(request)) as deltas:
            async for delta in deltas:
                last = self._clock()
                if not first:
                    first = last
                else:
                    after += len(delta.tokens)
                if delta.finish is None and not self._quiet(1):
                    return None
        if last <= first or placement_of(self._read_plan()) != placement:
            return None
        measured = Measured(
            placement=placement,
            firstTokenMs=round((first - began) * 1000, 1),
            tokensPerSecond=round(after / (last - first), 1),
            promptTokens=len(self._prompt),
        )
        log.info("measured, for one user", extra=measured.model_dump(exclude={"placement"}))
        return measured
