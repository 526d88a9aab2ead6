"""Having the router's kubelet bring it the plan at once.

The router reads the plan from a mounted ConfigMap, and a kubelet looks for changes of mounted ConfigMaps when it syncs
the pod: every minute or so, which would be the longest part of a recovery. A change of the pod itself makes it sync at
once, so the router's pod carries the digest of the plan that it should have.

A sync can still bring the old plan: a kubelet mounts what it has heard of the ConfigMap, by another watch than the
pod's. A router that speaks of a lost stage which the plan names no more has not read the plan, and its pod changes once
more.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from shoal_operator import names
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import Object, ref_of
from shoal_operator.errors import ApiConflict, ApiNotFound
from shoal_operator.queue import Key
from shoal_operator.reconcile.observed import Observed

AGAIN_SECONDS: Final = 1.0
"""A kubelet has brought a plan after some tenths of a second, and the router read it."""
LONGEST_SECONDS: Final = 60.0
"""What does not help any more must not become a write a second."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Naming:
    """When a plan was named on a pod the last time, and how often before."""

    at: datetime.datetime
    before: int = 0

    def left(self, now: datetime.datetime) -> float:
        """Seconds until it is named again, if the router has not read it by then."""
        patience = min(AGAIN_SECONDS * 2.0**self.before, LONGEST_SECONDS)
        return patience - (now - self.at).total_seconds()


class Delivery:
    """Invariant: `_namings` has, by uid, only pods that were there when their ShardedModel was last reconciled."""

    def __init__(self, cluster: Cluster, cache: Cache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._namings: dict[Key, dict[str, _Naming]] = {}

    async def deliver(self, key: Key, observed: Observed, plan: Object, stages: Set[str]) -> float | None:
        """Name the plan, which has these stages, on every pod of the router that does not follow it yet.

        Returns the seconds after which to look again; None when nothing speaks against its having been read.
        """
        digest = plan["metadata"]["annotations"][names.HASH_ANNOTATION]
        unread = bool(observed.lost - stages)
        before = self._namings.pop(key, {})
        now = observed.now
        namings: dict[str, _Naming] = {}
        for pod in observed.pods_of(names.ROUTER):
            metadata = pod["metadata"]
            if metadata.get("deletionTimestamp"):
                continue
            uid = metadata["uid"]
            last = namings[uid] = before.get(uid, _Naming(now))
            if metadata.get("annotations", {}).get(names.PLAN_ANNOTATION) != digest:
                if await self._name(pod, digest, {names.PLAN_ANNOTATION: digest}):
                    namings[uid] = _Naming(now)
            elif (
                unread
                and last.left(now) <= 0
                and await self._name(pod, digest, {names.AGAIN_ANNOTATION: now.isoformat()})
            ):
                namings[uid] = _Naming(now, last.before + 1)
        if namings:
            self._namings[key] = namings
        return min((each.left(now) for each in namings.values()), default=None) if unread else None

    def forget(self, key: Key) -> None:
        """The ShardedModel is gone."""
        self._namings.pop(key, None)

    async def _name(self, pod: Object, digest: str, annotations: dict[str, str]) -> bool:
        try:
            stored = await self._cluster.annotate(ref_of(pod), pod["metadata"]["uid"], annotations)
        except (ApiConflict, ApiNotFound):
            return False  # It has just gone; the next one starts with the plan.
        self._cache.seen(stored)
        log.info("%s is to read plan %s", ref_of(pod), digest)
        return True
