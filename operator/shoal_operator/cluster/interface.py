"""The seam between the operator and the API server: nine verbs. `KubernetesCluster` is the real one, `FakeCluster`
keeps the objects in memory and can fail between any two calls.

Every call has a deadline inside, and raises ApiError as shoal_operator.errors draws it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from shoal_operator.cluster.kinds import Kind, Object, Ref


class Change(StrEnum):
    """What a watch reports."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch. A bookmark carries nothing but its resource version."""

    change: Change
    object: Object


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects of a kind at one resource version, from which a watch can go on."""

    items: tuple[Object, ...]
    resource_version: str


class Cluster(Protocol):
    """The API server."""

    async def list(self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None) -> Listing:
        """All objects of a kind; of one namespace, or with these labels, when given."""
        ...

    def watch(
        self, kind: Kind, resource_version: str, namespace: str = "", labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """What changes after `resource_version`. Ends by itself after some minutes; raises ApiError with status 410
        when the version is too old to go on from."""
        ...

    async def get(self, ref: Ref) -> Object | None:
        """One object, None when there is none."""
        ...

    async def last_line(self, pod: Ref, container: str) -> str:
        """The last line that a container has logged so far; empty when there is none."""
        ...

    async def apply(self, obj: Object, *, force: bool) -> Object:
        """Server-side apply with the operator's field manager: the fields of `obj` become so, others of ours go.

        Without `force` a field that somebody else holds with another value raises ApiConflict.
        """
        ...

    async def apply_status(self, obj: Object) -> Object:
        """Server-side apply of `obj["status"]` alone, which only the operator writes."""
        ...

    async def annotate(self, ref: Ref, uid: str, annotations: Mapping[str, str]) -> Object:
        """Set annotations of the object with that uid and leave the rest of it alone; raises ApiConflict when another
        object has its name now."""
        ...

    async def create(self, obj: Object) -> Object:
        """Create; raises ApiConflict when it exists."""
        ...

    async def replace(self, obj: Object) -> Object:
        """Replace; raises ApiConflict when its resourceVersion is not the newest."""
        ...

    async def delete(self, ref: Ref, uid: str) -> None:
        """Delete the object with that uid, its dependents in the background. One that is gone is no error."""
        ...
