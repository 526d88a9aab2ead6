"""Which stages are gone by what their routers say, for all ShardedModels: a cause of reconciles, and what they read.

The API server learns that a PC is gone when its kubelet has been silent for most of a minute; the router of a model
learns it within seconds. Only what is being said counts: when a router falls silent, nothing is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from shoal_operator import names
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.kinds import POD, SHARDED_MODEL, Object, kind_of, ref_of
from shoal_operator.cluster.routers import Listen, RouterSilent
from shoal_operator.queue import Key

LOOK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 2.0

log = logging.getLogger(__name__)


class LostStages:
    """Invariant: `_said` has an entry only while the stream of a router that runs is open."""

    def __init__(
        self, cache: Cache, listen: Listen, changed: Callable[[Key], None], *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._cache = cache
        self._listen = listen
        self._changed = changed
        self._retry_seconds = retry_seconds
        self._said: dict[tuple[Key, str], frozenset[str]] = {}
        self._listeners: dict[tuple[Key, str], asyncio.Task[None]] = {}

    def of(self, key: Key) -> frozenset[str]:
        """Addresses of the model's stages that are gone, as its router says."""
        return frozenset(address for (of, _), said in self._said.items() if of == key for address in said)

    async def run(self) -> None:
        """Listen to every router that runs, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._follow(tasks)
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._said.clear()
            self._listeners.clear()

    def _follow(self, tasks: asyncio.TaskGroup) -> None:
        running = {
            ((ref.namespace, ref.name), address)
            for ref in (ref_of(body) for body in self._cache.of_kind(SHARDED_MODEL))
            for pod in self._cache.children(ref.namespace, ref.name)
            if (address := _router_address(pod))
        }
        for gone in self._listeners.keys() - running:
            self._listeners.pop(gone).cancel()
        for new in running - self._listeners.keys():
            self._listeners[new] = tasks.create_task(self._hear(*new), name=f"stages of {new[0]}")

    async def _hear(self, key: Key, address: str) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._listen(address)) as stream:
                    async for lost in stream:
                        self._take(key, address, lost)
            except RouterSilent as error:
                log.debug("%s", error)
            finally:
                self._take(key, address, frozenset())
                self._said.pop((key, address), None)
            await asyncio.sleep(self._retry_seconds)

    def _take(self, key: Key, address: str, lost: frozenset[str]) -> None:
        before = self._said.get((key, address), frozenset())
        self._said[key, address] = lost
        if lost != before:
            log.info("%s/%s: gone by what the router says: %s", *key, ", ".join(sorted(lost)) or "no stage")
            self._changed(key)


def _router_address(pod: Object) -> str:
    """Where a pod of a router listens; empty for other objects, and for one that does not run."""
    metadata, status = pod["metadata"], pod.get("status", {})
    if kind_of(pod) != POD or metadata["labels"].get(names.ROLE_LABEL) != names.ROUTER:
        return ""
    if metadata.get("deletionTimestamp") or status.get("phase") != "Running":
        return ""
    return str(status.get("podIP", ""))
