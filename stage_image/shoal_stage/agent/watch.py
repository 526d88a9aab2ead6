"""The agent's loop: read, judge, write what is due; and the doctor when its time has come."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shoal.errors import ResourceError
from shoal.node_use import use_of
from shoal_stage.agent import checkup
from shoal_stage.agent.condition import Said, condition, is_due, said_now, taken_up
from shoal_stage.agent.logind import somebody_is_there
from shoal_stage.agent.node_object import NodeObject
from shoal_stage.agent.observation import Observation, Readings, between
from shoal_stage.agent.readings import Places, boot_id, read
from shoal_stage.agent.use import USUAL, Patience, Use, next_use

SECONDS: Final = 10.0
"""Between two looks."""
AGAIN_SECONDS: Final = 600.0
"""After a doctor that could not run."""

log = logging.getLogger(__name__)


class Agent:
    """One PC. `peers` is the headless Service of all agents as name:port, "" measures no links; `mine` is one's own
    address there."""

    def __init__(
        self,
        node: NodeObject,
        places: Places,
        *,
        cache: Path = Path("/tmp"),
        peers: str = "",
        mine: str = "",
        patience: Patience = USUAL,
        wall: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._node = node
        self._places = places
        self._cache = cache
        self._peers = peers
        self._mine = mine
        self._patience = patience
        self._wall = wall
        self._use = Use()
        self._said: Said | None = None
        self._annotations: dict[str, str] | None = None
        self._before: Readings | None = None
        self._deaf = ""
        self._doctor_at = 0.0

    async def run(self, seconds: float = SECONDS) -> None:
        """Until cancelled. What the API server does not take is written at the next look."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self.look(clock())
            except ResourceError as error:
                log.warning("%s; again in %.0f s", error, seconds)
            await asyncio.sleep(seconds)

    async def look(self, now: float) -> None:
        """Once: raises ResourceError when something that is due could not be written."""
        readings = read(self._places, now, await self._person())
        before, self._before = self._before, readings
        if self._annotations is None:
            await self._begin(now)
        if before is None:
            return
        seen = between(before, readings)
        self._use = next_use(self._use, seen, self._patience)
        if is_due(self._said, self._use, now):
            await self._say(now)
        await self._checkup(seen, now)

    async def _begin(self, now: float) -> None:
        """Go on where the last agent of this PC ended."""
        node = await self._node.patch()
        found = use_of(node["status"].get("conditions", ()))
        self._use = taken_up(found, now, self._wall())
        self._annotations = dict(node["metadata"].get("annotations") or {})

    async def _say(self, now: float) -> None:
        wall = self._wall()
        said = said_now(self._said, self._use, now, wall)
        await self._node.patch((condition(said, wall),))
        if self._said is None or self._said.reason is not said.reason:
            log.info("%s", condition(said, wall)["message"], extra={"reason": said.reason.value})
        self._said = said

    async def _checkup(self, seen: Observation, now: float) -> None:
        assert self._annotations is not None  # `look` began with them
        checked = checkup.name_of(boot_id(self._places))
        if self._annotations.get(checkup.CHECKED) == checked or now < self._doctor_at:
            return
        if not checkup.may_run(self._use, seen):
            return
        self._doctor_at = now + AGAIN_SECONDS
        peers = await checkup.peers_of(self._peers, self._mine) if self._peers else []
        report = await checkup.examine(self._cache, peers)
        changes = checkup.annotations_of(report, self._annotations, checked)
        node = await self._node.patch(annotations=changes)
        self._annotations = dict(node["metadata"].get("annotations") or {})
        # What the doctor itself computed is nobody's use of the PC.
        self._before = None
        log.info("the doctor has looked at this PC", extra={"annotations": changes})

    async def _person(self) -> bool | None:
        """None on a PC without logind: that is said once, and counts as nobody."""
        try:
            person = await somebody_is_there(self._places.run)
        except ResourceError as error:
            if str(error) != self._deaf:
                log.warning("%s: whether somebody is at this PC is not known", error)
            self._deaf = str(error)
            return None
        self._deaf = ""
        return person
