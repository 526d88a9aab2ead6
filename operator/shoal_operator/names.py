"""Names, labels and annotations of everything that belongs to a ShardedModel.

A stage's name carries the hash of its own assignment (node, device, blocks, model, image): a stage that moves to
another node is another object, so its replacement never waits for the old pod to end, and a stage that did not move
keeps its name and stays up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from shoal.plan.document import StagePlan

MANAGER: Final = "shoal-operator"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": MANAGER}
MODEL_LABEL: Final = "shoal.dev/model"
ROLE_LABEL: Final = "shoal.dev/role"
PIPELINE_LABEL: Final = "shoal.dev/pipeline"
STAGE_LABEL: Final = "shoal.dev/stage"
HASH_ANNOTATION: Final = "shoal.dev/hash"
NAME_LABEL: Final = "shoal.dev/name"
CUT_ANNOTATION: Final = "shoal.dev/cut"
ORIGIN_ANNOTATION: Final = "shoal.dev/model-origin"
KEY_ANNOTATION: Final = "shoal.dev/model-key"
PLAN_ANNOTATION: Final = "shoal.dev/plan"
AGAIN_ANNOTATION: Final = "shoal.dev/plan-again"

STAGE: Final = "stage"
ROUTER: Final = "router"
STORE: Final = "store"
COMPILE: Final = "compile"

STAGE_PORT: Final = 50051
HEALTH_PORT: Final = 50052
"""Plain, for the kubelet's probes: it holds no certificate of the pipeline."""
ROUTER_PORT: Final = 8000
METRICS_PORT: Final = 9100
"""Of the router, beside its API: what Prometheus reads."""
STORE_PORT: Final = 8080


def labels(model: str, role: str, **more: str) -> dict[str, str]:
    """Labels of a child. `more` holds the values of shoal.dev/<name>."""
    return {
        **MANAGED_BY,
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": model,
        "app.kubernetes.io/component": role,
        **selector(model, role),
        **{f"shoal.dev/{name}": value for name, value in more.items()},
    }


def selector(model: str, role: str | None = None) -> dict[str, str]:
    """Labels that find a model's children, of one role or of all."""
    return {MODEL_LABEL: model} | ({ROLE_LABEL: role} if role else {})


def digest_of(data: Any) -> str:
    """sha256 (hex) of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def stage_name(model: str, stage: StagePlan, model_digest: str, image: str) -> str:
    """`<model>-s<index>-<hash8>`."""
    assignment = [stage.node, stage.device.value, stage.block_start, stage.block_end, model_digest, image]
    return f"{model}-s{stage.index}-{digest_of(assignment)[:8]}"


def stages_service(model: str) -> str:
    """The headless Service in which every stage has a name."""
    return f"{model}-stages"


def stage_host(model: str, namespace: str, stage: str, domain: str) -> str:
    """The DNS name of one stage: it stays when the pod's address changes, and a service mesh routes it."""
    return f"{stage}.{stages_service(model)}.{namespace}.svc.{domain}"


def stage_of(address: str) -> str:
    """The stage's name in an address that `stage_host` made."""
    return address.partition(".")[0]


def model_of(obj: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the ShardedModel that a child belongs to."""
    metadata = obj["metadata"]
    name = metadata.get("labels", {}).get(MODEL_LABEL)
    return (metadata.get("namespace", ""), name) if name else None
