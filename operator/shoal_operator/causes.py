"""Which ShardedModels a change in the cluster concerns. Pure.

Most changes concern nobody: kubelets renew their nodes' status every few minutes, pods of strangers come and go. Only
what a plan or a condition would read differently is a cause.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from shoal.node_use import CONDITION
from shoal.plan.node_annotations import from_annotations
from shoal_operator import names
from shoal_operator.cluster.kinds import CONFIG_MAP, NODE, POD, SHARDED_MODEL, Object, kind_of, ref_of
from shoal_operator.nodes import ENDED
from shoal_operator.queue import Key


class Concern(StrEnum):
    """Whom a change concerns beside a single model."""

    NOBODY = "nobody"
    WAITING = "waiting"
    EVERYBODY = "everybody"


def concerned(before: Object | None, after: Object | None) -> tuple[Key | None, Concern]:
    """The model that a change concerns, and which others. WAITING are those that have no room yet."""
    obj = after if after is not None else before
    assert obj is not None  # a change has at least one side
    kind = kind_of(obj)
    if kind == NODE:
        return None, Concern.NOBODY if _node(before) == _node(after) else Concern.EVERYBODY
    if kind == SHARDED_MODEL:
        ref = ref_of(obj)
        same = before is not None and after is not None and _wanted(before) == _wanted(after)
        return (None if same else (ref.namespace, ref.name)), Concern.NOBODY
    owner = names.model_of(obj)
    if kind == POD and owner is None:
        return None, Concern.NOBODY if _room(before) == _room(after) else Concern.WAITING
    # A plan that goes gives memory back.
    freed = kind == CONFIG_MAP and after is None
    return owner, Concern.WAITING if freed else Concern.NOBODY


def _wanted(body: Object) -> Any:
    """What of a ShardedModel matters. Its status counts: one that somebody else changed is put right."""
    metadata = body["metadata"]
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"), body.get("status")


def _node(node: Object | None) -> Any:
    if node is None:
        return None
    status = node.get("status", {})
    ready = [
        (each["status"], each.get("lastTransitionTime"))
        for each in status.get("conditions", ())
        if each["type"] == "Ready"
    ]
    # What an agent says, not that it says so again.
    use = [(each["status"], each.get("reason")) for each in status.get("conditions", ()) if each["type"] == CONDITION]
    spec = node.get("spec", {})
    return (
        ready,
        use,
        from_annotations(node["metadata"].get("annotations") or {}),
        spec.get("unschedulable"),
        spec.get("taints"),
        node["metadata"].get("labels"),
        status.get("allocatable"),
    )


def _room(pod: Object | None) -> Any:
    """Where a stranger's pod takes memory."""
    if pod is None or pod.get("status", {}).get("phase") in ENDED:
        return None
    return pod.get("spec", {}).get("nodeName")
