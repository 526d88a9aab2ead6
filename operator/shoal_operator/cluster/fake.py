"""An API server in memory: server-side apply, resource versions, watches, garbage collection, and faults on demand.

It keeps what the operator relies on: an apply that changes nothing writes nothing, a deleted owner takes its
dependents along, a precondition that does not hold is a conflict. `fault` is asked before and after every call; a
fault after a call is an answer that got lost: the change has happened.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal_operator.cluster.interface import Change, Listing, WatchEvent
from shoal_operator.cluster.kinds import Kind, Object, Ref, ref_of
from shoal_operator.errors import ApiConflict, ApiNotFound

T = TypeVar("T")
_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its number, verb and object, and whether it is about to happen or has just happened."""

    number: int
    verb: str
    ref: Ref
    happened: bool


class FakeCluster:
    """`Cluster` in memory. `objects` is the truth, `writes` the audit log of what changed something."""

    def __init__(self, *objects: Object) -> None:
        self.objects: dict[Ref, Object] = {}
        self.writes: list[tuple[str, Ref]] = []
        self.logs: dict[tuple[str, str], str] = {}
        self.calls = 0
        self.fault: Callable[[Call], None] = lambda _: None
        self._versions = itertools.count(1)
        self._log: list[tuple[int, Kind, WatchEvent]] = []
        self._changed = asyncio.Event()
        for obj in objects:
            self.put(obj)

    # What the outside world does: a person, a controller, a kubelet.

    def put(self, obj: Object) -> Object:
        """Set an object as it is, keeping the uid of one that exists."""
        ref = ref_of(obj)
        before = self.objects.get(ref)
        after = _copy(obj)
        metadata = after["metadata"]
        old = before["metadata"] if before else {}
        metadata.setdefault("uid", old.get("uid") or f"uid-{ref.kind.kind.lower()}-{ref.name}-{next(self._versions)}")
        metadata.setdefault("creationTimestamp", old.get("creationTimestamp", "2026-01-01T00:00:00Z"))
        same_spec = before is not None and before.get("spec") == after.get("spec")
        metadata["generation"] = old.get("generation", 1) + (0 if same_spec or not before else 1)
        return self._store(ref, after)

    def remove(self, ref: Ref) -> None:
        """Delete an object and, as the garbage collector does, everything that it owns."""
        gone = self.objects.pop(ref, None)
        if gone is None:
            return
        self._report(Change.DELETED, gone)
        uid = gone["metadata"]["uid"]
        for other, obj in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences", ())):
                self.remove(other)

    def of_kind(self, kind: Kind) -> list[Object]:
        """All objects of a kind, by name."""
        return [self.objects[ref] for ref in sorted((ref for ref in self.objects if ref.kind == kind), key=str)]

    # The seam.

    async def list(self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None) -> Listing:
        """See `Cluster.list`."""
        self._before("list", Ref(kind, namespace, ""))
        items = [obj for obj in self.of_kind(kind) if _matches(obj, namespace, labels)]
        return Listing(tuple(_copy(items)), str(self._newest()))

    async def watch(
        self, kind: Kind, resource_version: str, namespace: str = "", labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """See `Cluster.watch`; never ends by itself."""
        seen = int(resource_version)
        while True:
            self._changed.clear()
            for version, its_kind, event in list(self._log):
                if version > seen and its_kind == kind and _matches(event.object, namespace, labels):
                    yield WatchEvent(event.change, _copy(event.object))
                seen = max(seen, version)
            await self._changed.wait()

    async def get(self, ref: Ref) -> Object | None:
        """See `Cluster.get`."""
        self._before("get", ref)
        return _copy(self.objects.get(ref))

    async def last_line(self, pod: Ref, container: str) -> str:
        """See `Cluster.last_line`; `logs` holds what pods have said."""
        self._before("log", pod)
        self._existing(pod, "log")
        return self.logs.get((pod.name, container), "")

    async def apply(self, obj: Object, *, force: bool) -> Object:
        """See `Cluster.apply`. An object that somebody else made conflicts unless forced."""
        ref = ref_of(obj)
        self._before("patch", ref)
        before = self.objects.get(ref)
        if before is not None and not force and not _ours(before, obj):
            raise ApiConflict(f"patch {ref}", "a field is managed by somebody else", status=409)
        after = _copy(obj)
        if before is not None:
            after["metadata"] |= {key: before["metadata"][key] for key in _OWN if key in before["metadata"]}
            if "status" in before:
                after["status"] = before["status"]
        return self._write("patch", ref, before, after)

    async def apply_status(self, obj: Object) -> Object:
        """See `Cluster.apply_status`."""
        ref = ref_of(obj)
        self._before("patch", ref)
        before = self._existing(ref, "patch")
        uid = obj["metadata"].get("uid")
        if uid is not None and uid != before["metadata"]["uid"]:
            raise ApiConflict(f"patch {ref} status", "another object has this name now", status=409)
        after = {**_copy(before), "status": _copy(obj["status"])}
        return self._write("patch", ref, before, after)

    async def annotate(self, ref: Ref, uid: str, annotations: Mapping[str, str]) -> Object:
        """See `Cluster.annotate`."""
        self._before("patch", ref)
        before = self._existing(ref, "patch")
        if uid != before["metadata"]["uid"]:
            raise ApiConflict(f"patch {ref}", "another object has this name now", status=409)
        after = _copy(before)
        after["metadata"]["annotations"] = {**after["metadata"].get("annotations", {}), **annotations}
        return self._write("patch", ref, before, after)

    async def create(self, obj: Object) -> Object:
        """See `Cluster.create`."""
        ref = ref_of(obj)
        self._before("create", ref)
        if ref in self.objects:
            raise ApiConflict(f"create {ref}", "it exists", status=409)
        return self._write("create", ref, None, _copy(obj))

    async def replace(self, obj: Object) -> Object:
        """See `Cluster.replace`."""
        ref = ref_of(obj)
        self._before("update", ref)
        before = self._existing(ref, "update")
        version = obj["metadata"].get("resourceVersion")
        if version is not None and version != before["metadata"]["resourceVersion"]:
            raise ApiConflict(f"update {ref}", "it changed meanwhile", status=409)
        return self._write("update", ref, before, _copy(obj))

    async def delete(self, ref: Ref, uid: str) -> None:
        """See `Cluster.delete`."""
        self._before("delete", ref)
        before = self.objects.get(ref)
        if before is not None:
            if before["metadata"]["uid"] != uid:
                raise ApiConflict(f"delete {ref}", "another object has this name now", status=409)
            self.writes.append(("delete", ref))
            self.remove(ref)
        self._after("delete", ref)

    def _existing(self, ref: Ref, verb: str) -> Object:
        try:
            return self.objects[ref]
        except KeyError:
            raise ApiNotFound(f"{verb} {ref}", "not found", status=404) from None

    def _write(self, verb: str, ref: Ref, before: Object | None, after: Object) -> Object:
        if before is None or _bare(before) != _bare(after):
            self.writes.append((verb, ref))
            self.put(after)
        # The garbage collector takes what names an owner that is gone.
        owners = {owner["uid"] for owner in after["metadata"].get("ownerReferences", ())}
        if owners and not owners & {obj["metadata"]["uid"] for obj in self.objects.values()}:
            stored = _copy(self.objects[ref])
            self.remove(ref)
        else:
            stored = _copy(self.objects[ref])
        self._after(verb, ref)
        return stored

    def _store(self, ref: Ref, obj: Object) -> Object:
        change = Change.MODIFIED if ref in self.objects else Change.ADDED
        obj["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[ref] = obj
        self._report(change, obj)
        return obj

    def _report(self, change: Change, obj: Object) -> None:
        version = next(self._versions)
        event = WatchEvent(change, _copy(obj))
        if change is Change.DELETED:
            event.object["metadata"]["resourceVersion"] = str(version)
        self._log.append((version, ref_of(obj).kind, event))
        self._changed.set()

    def _newest(self) -> int:
        return self._log[-1][0] if self._log else 0

    def _before(self, verb: str, ref: Ref) -> None:
        self.calls += 1
        self.fault(Call(self.calls, verb, ref, happened=False))

    def _after(self, verb: str, ref: Ref) -> None:
        self.fault(Call(self.calls, verb, ref, happened=True))


def _matches(obj: Mapping[str, Any], namespace: str, labels: Mapping[str, str] | None) -> bool:
    metadata = obj["metadata"]
    mine = metadata.get("labels", {})
    return (not namespace or metadata.get("namespace", "") == namespace) and all(
        mine.get(key) == value for key, value in (labels or {}).items()
    )


def _ours(before: Mapping[str, Any], obj: Mapping[str, Any]) -> bool:
    def owner(one: Mapping[str, Any]) -> list[str]:
        return [reference["uid"] for reference in one["metadata"].get("ownerReferences", ())]

    return owner(before) == owner(obj)


def _bare(obj: Mapping[str, Any]) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _OWN}
    return {**obj, "metadata": metadata}


def _copy(value: T) -> T:
    """A copy of what is JSON anyway; several times quicker than a deep copy."""
    copied: T = json.loads(json.dumps(value))
    return copied
