"""What the page shows of each ShardedModel: its conditions, and its plan with the PCs. Pure.

Everything is what the status says already; the page asks nobody, and shows what `kubectl get` would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shoal.node_use import use_of
from shoal.resource import API_VERSION

Object = Mapping[str, Any]
_PLAN: Final[Object] = {"pipelines": (), "standbys": (), "spares": (), "reasons": (), "advice": ()}


def models_of(models: Iterable[Object], nodes: Iterable[Object]) -> list[dict[str, Any]]:
    """One entry for each ShardedModel, those that do not serve first, then by name."""
    in_use = {}
    for node in nodes:
        use = use_of(node.get("status", {}).get("conditions", ()))
        if use is not None and use.in_use:
            in_use[node["metadata"]["name"]] = use.reason
    return sorted((_model(body, in_use) for body in models), key=_order)


def _model(body: Object, in_use: Mapping[str, str]) -> dict[str, Any]:
    metadata, spec, status = body["metadata"], body["spec"], body.get("status", {})
    plan = {**_PLAN, **status.get("plan", {})}
    conditions = [_condition(each) for each in status.get("conditions", ())]
    ready = next((each for each in conditions if each["type"] == "Ready"), None)
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "apiVersion": API_VERSION,
        "state": _state(ready, status, spec),
        "reason": ready["reason"] if ready else "New",
        "message": ready["message"] if ready else "the operator has not looked at it yet",
        "behind": metadata.get("generation", 0) != status.get("observedGeneration", 0),
        "conditions": conditions,
        "replicas": spec.get("replicas", 1),
        "readyReplicas": status.get("readyReplicas", 0),
        "stages": status.get("stages", ""),
        "digest": status.get("modelDigest", ""),
        "tokensPerSecond": plan.get("tokensPerSecond"),
        "measured": status.get("measured"),
        "url": status.get("url", ""),
        "page": _page(spec, status),
        "port": spec.get("router", {}).get("service", {}).get("port", 8000),
        "pipelines": [
            {"index": each["index"], "stages": [_stage(stage, in_use) for stage in each.get("stages", ())]}
            for each in plan["pipelines"]
        ],
        "standbys": [_stage(each, in_use) for each in plan["standbys"]],
        "spares": list(plan["spares"]),
        "advice": list(plan["advice"]),
    }


def _condition(each: Object) -> dict[str, Any]:
    return {
        "type": each["type"],
        "status": each["status"],
        "reason": each.get("reason", ""),
        "message": each.get("message", ""),
        "since": each.get("lastTransitionTime", ""),
    }


def _stage(stage: Object, in_use: Mapping[str, str]) -> dict[str, Any]:
    return {
        "index": stage["index"],
        "node": stage["node"],
        "device": stage["device"],
        "layers": stage["layers"],
        "memory": stage["memoryBytes"],
        "ready": stage.get("ready", False),
        "inUse": in_use.get(stage["node"], ""),
    }


def _state(ready: Object | None, status: Object, spec: Object) -> str:
    """How the page marks it: ready, partly (it serves, with less than it should have), off, or down."""
    degraded = any(each["type"] == "Degraded" and each["status"] == "True" for each in status.get("conditions", ()))
    if ready is not None and ready["status"] == "True":
        return "partly" if degraded else "ready"
    return "off" if spec.get("replicas", 1) == 0 else "partly" if status.get("readyReplicas", 0) else "down"


def _page(spec: Object, status: Object) -> str:
    """Where a browser finds the router's page: by the Ingress alone, since Services have names in the cluster only."""
    outside = spec.get("router", {}).get("ingress") is not None
    return str(status.get("url", "")).removesuffix("v1") if outside else ""


def _order(model: Object) -> tuple[int, str, str]:
    return (["down", "partly", "off", "ready"].index(model["state"]), model["namespace"], model["name"])
