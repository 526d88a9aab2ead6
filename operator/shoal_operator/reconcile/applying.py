"""Writing: apply what changed, remove what is not wanted. The only part of a reconcile that changes the cluster.

An object is applied when its hash differs from what the cluster holds, or when somebody else changed what it says.
Between any two calls the operator may die: objects have deterministic names and come in an order in which a part of
them is harmless, so that the next reconcile finishes what this one began.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from shoal_operator import names
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import CLAIM, CONFIG_MAP, JOB, ROLE, SECRET, Kind, Object, Ref, kind_of, ref_of
from shoal_operator.errors import ApiConflict, NameTaken

ONCE: Final[Collection[Kind]] = (CLAIM, JOB)
"""Kinds that cannot be changed once they exist; what they are made for is in their names."""

PLAIN: Final[Mapping[Kind, str]] = {CONFIG_MAP: "data", ROLE: "rules"}
"""Kinds that the API server adds no defaults to, with the field that says it all."""

log = logging.getLogger(__name__)


class Applier:
    """Applies and removes children. Remembers the generations that its own writes left, to notice other writers."""

    def __init__(self, cluster: Cluster, cache: Cache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._generations: dict[str, int] = {}

    async def apply(self, objects: Sequence[Object], observed: Mapping[Ref, Object]) -> list[Ref]:
        """Apply those that differ; returns them. Raises ApiError, or NameTaken for an object of somebody else."""
        written = []
        for obj in objects:
            ref = ref_of(obj)
            current = observed.get(ref)
            if current is not None and (ref.kind in ONCE or not self._differs(obj, current)):
                continue
            await self.write(obj, ours=current is not None)
            written.append(ref)
        return written

    async def write(self, obj: Object, *, ours: bool) -> Object:
        """Apply one object. What is not known to be ours is not taken over."""
        ref = ref_of(obj)
        try:
            stored = await self._cluster.apply(obj, force=ours)
        except ApiConflict as error:
            if ours:
                raise
            raise NameTaken(f"{ref} exists and belongs to somebody else: rename it or this ShardedModel") from error
        self._generations[stored["metadata"]["uid"]] = stored["metadata"].get("generation", 0)
        self._cache.seen(stored)
        log.info("applied %s", ref)
        return stored

    async def remove(self, unwanted: Sequence[Object]) -> None:
        """Delete children, and their dependents with them."""
        for obj in unwanted:
            ref, uid = ref_of(obj), obj["metadata"]["uid"]
            if obj["metadata"].get("deletionTimestamp"):
                continue
            await self._cluster.delete(ref, uid)
            self._generations.pop(uid, None)
            log.info("removed %s", ref)
            # What has finalizers stays until they are done; the watch says so again, and this is asked for again.
            self._cache.gone(ref)

    def forget(self, uids: Collection[str]) -> None:
        """Drop what is remembered of objects that are gone."""
        for uid in uids:
            self._generations.pop(uid, None)

    def _differs(self, obj: Object, current: Object) -> bool:
        metadata = current["metadata"]
        if (
            metadata.get("annotations", {}).get(names.HASH_ANNOTATION)
            != obj["metadata"]["annotations"][names.HASH_ANNOTATION]
        ):
            return True
        field = PLAIN.get(kind_of(obj))
        if field is not None and current.get(field) != obj.get(field):
            return True
        generation = metadata.get("generation", 0)
        return bool(generation != self._generations.setdefault(metadata["uid"], generation))


def unwanted_children(
    observed: Mapping[Ref, Object], wanted: Collection[Ref], keep: Callable[[Mapping[str, Any]], bool]
) -> list[Object]:
    """Children that are not wanted any more. Claims and certificates stay until the ShardedModel goes."""
    return [
        obj for ref, obj in observed.items() if ref not in wanted and ref.kind not in (CLAIM, SECRET) and not keep(obj)
    ]
