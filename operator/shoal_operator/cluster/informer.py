"""Keeps the cache in step with the API server: list once, then watch, and list anew when the watch cannot go on.

Each informer notes when it last heard anything, bookmarks included. A watch that is silent for longer than the API
server lets it be is dead without knowing it, and liveness fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.interface import Change, Cluster
from shoal_operator.cluster.kinds import Kind, ref_of
from shoal_operator.errors import ApiError

RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
GONE: Final = 410
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Informer:
    """One kind, in one namespace or in all of them."""

    cluster: Cluster
    cache: Cache
    kind: Kind
    namespace: str = ""
    labels: Mapping[str, str] | None = None
    clock: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())
    heard: float = 0.0
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    _version: str = ""
    _failures: int = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._follow()
                self._failures = 0
            except ApiError as error:
                if error.status == GONE:
                    self._version = ""
                    continue
                # A watch that broke off goes on where it was; only the API server says that this is too far back.
                wait = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
                self._failures += 1
                log.warning("watching %s failed, again in %.1f s: %s", self.kind.plural, wait, error)
                await asyncio.sleep(wait)

    async def _follow(self) -> None:
        if not self._version:
            listing = await self.cluster.list(self.kind, self.namespace, self.labels)
            self.cache.replace(self.kind, listing.items, self.namespace)
            self._version = listing.resource_version
            self._note()
            self.synced.set()
        async for event in self.cluster.watch(self.kind, self._version, self.namespace, self.labels):
            self._note()
            self._version = event.object["metadata"]["resourceVersion"]
            if event.change is Change.BOOKMARK:
                continue
            if event.change is Change.DELETED:
                self.cache.gone(ref_of(event.object))
            else:
                self.cache.seen(event.object)
        self._note()

    def _note(self) -> None:
        self.heard = self.clock()
        self._failures = 0


def silence(informers: Iterable[Informer], now: float) -> float:
    """Seconds since the quietest informer heard anything."""
    return max((now - informer.heard for informer in informers), default=0.0)
