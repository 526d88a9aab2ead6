"""What the operator has seen of the cluster, so that a reconcile reads memory and not the API server.

Watches fill it; an applied object is put in at once, so that the next reconcile sees its own writes. Objects of an
older resource version never replace newer ones: the answer to an apply and the watch's event may come in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shoal_operator import names
from shoal_operator.cluster.kinds import POD, Kind, Object, Ref, ref_of
from shoal_operator.nodes import slim_pod

OnChange = Callable[[Object | None, Object | None], None]
Owner = tuple[str, str]


class Cache:
    """Objects by reference, and children by the ShardedModel that they belong to.

    Invariant: `_children` holds exactly the references of `_objects` whose labels name a model.
    """

    def __init__(self) -> None:
        self._objects: dict[Ref, Object] = {}
        self._by_kind: dict[Kind, set[Ref]] = defaultdict(set)
        self._children: dict[Owner, set[Ref]] = defaultdict(set)
        self.on_change: OnChange = lambda _before, _after: None

    def get(self, ref: Ref) -> Object | None:
        """One object as it was last seen."""
        return self._objects.get(ref)

    def of_kind(self, kind: Kind) -> Iterator[Object]:
        """All objects of a kind, in no order."""
        return (self._objects[ref] for ref in self._by_kind[kind])

    def children(self, namespace: str, model: str) -> list[Object]:
        """Everything labelled as belonging to a ShardedModel, pods too, by kind and name."""
        refs = self._children.get((namespace, model), set())
        return [self._objects[ref] for ref in sorted(refs, key=lambda ref: (ref.kind.kind, ref.name))]

    def seen(self, obj: Object) -> None:
        """An object as the API server has it now."""
        ref = ref_of(obj)
        before = self._objects.get(ref)
        if before is not None and _version(obj) < _version(before):
            return
        after = _kept(obj)
        self._forget(ref)
        self._objects[ref] = after
        self._by_kind[ref.kind].add(ref)
        owner = names.model_of(after)
        if owner is not None:
            self._children[owner].add(ref)
        if before is None or _version(before) != _version(after):
            self.on_change(before, after)

    def gone(self, ref: Ref) -> None:
        """An object that is there no more."""
        before = self._forget(ref)
        if before is not None:
            self.on_change(before, None)

    def replace(self, kind: Kind, objects: Iterable[Object], namespace: str = "") -> None:
        """All objects of a kind (in a namespace) at once: what is not among them is gone."""
        objects = list(objects)
        here = {ref_of(obj) for obj in objects}
        for ref in [ref for ref in self._by_kind[kind] if ref not in here and namespace in ("", ref.namespace)]:
            self.gone(ref)
        for obj in objects:
            self.seen(obj)

    def check_integrity(self) -> None:
        """Raises AssertionError when the indexes do not say what the objects say."""
        assert {ref for refs in self._by_kind.values() for ref in refs} == set(self._objects)
        expected: dict[Owner, set[Ref]] = defaultdict(set)
        for ref, obj in self._objects.items():
            owner = names.model_of(obj)
            if owner is not None:
                expected[owner].add(ref)
        assert {owner: refs for owner, refs in self._children.items() if refs} == expected

    def _forget(self, ref: Ref) -> Object | None:
        before = self._objects.pop(ref, None)
        if before is None:
            return None
        self._by_kind[ref.kind].discard(ref)
        owner = names.model_of(before)
        if owner is not None:
            self._children[owner].discard(ref)
            if not self._children[owner]:
                del self._children[owner]
        return before


def _version(obj: Object) -> int:
    """Resource versions grow within one API server's store; opaque ones compare as equal."""
    text: Any = obj["metadata"].get("resourceVersion", "0")
    return int(text) if str(text).isdecimal() else 0


def _kept(obj: Object) -> Object:
    """Without the bookkeeping of field managers, and of strangers' pods only what counts for memory."""
    if ref_of(obj).kind == POD and names.model_of(obj) is None:
        return slim_pod(obj)
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}
