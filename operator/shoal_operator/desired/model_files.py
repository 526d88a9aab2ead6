"""How a pod comes to the model directory: a volume that has it, or a node cache that an init container fills.

The init container pulls only the blocks that the stage holds, by digest: it verifies what is there, goes on where it
was interrupted, and fetches nothing twice. With a cache directory on the node the blocks outlive the pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shoal.plan.facts import ModelFacts
from shoal.resource import Volume
from shoal_operator import names
from shoal_operator.cluster.kinds import Object
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.pod import USER, container

MODELS: Final = "/models"
PULL_MEMORY: Final = "256Mi"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a pod finds the model directory, and what makes it be there."""

    path: str
    volumes: tuple[Object, ...]
    mounts: tuple[Object, ...]
    init: tuple[Object, ...] = ()


def model_files(intent: Intent, facts: ModelFacts, blocks: tuple[int, int] | None) -> ModelFiles:
    """The model directory for a pod that needs blocks [start, end), or only the tokenizer (None)."""
    volume = intent.model.spec.model.volume
    if volume is not None:
        return mounted(volume)
    digest = facts.digest or ""
    cached = blocks is not None
    pull = [
        "python",
        "-m",
        "shoal_stage.store",
        "pull",
        f"--from={store_url(intent)}",
        f"--digest={digest}",
        f"--into={MODELS}",
        *([f"--blocks={blocks[0]}:{blocks[1]}"] if blocks else []),
    ]
    mounts = ({"name": "models", "mountPath": MODELS},)
    init = container(
        "pull",
        intent.stage_image,
        pull,
        intent,
        requests={"cpu": "50m", "memory": PULL_MEMORY},
        limits={"memory": PULL_MEMORY},
        mounts=mounts,
    )
    owner = _cache_owner(intent) if cached and intent.settings.node_cache else ()
    return ModelFiles(
        path=f"{MODELS}/{digest}",
        volumes=(_cache(intent) if cached else {"name": "models", "emptyDir": {}},),
        mounts=mounts,
        init=(*owner, init),
    )


def mounted(volume: Volume) -> ModelFiles:
    """A volume that holds the model directory already, read-only."""
    source: Object
    if volume.persistent_volume_claim is not None:
        source = {"persistentVolumeClaim": {"claimName": volume.persistent_volume_claim.claim_name, "readOnly": True}}
    elif volume.host_path is not None:
        source = {"hostPath": {"path": volume.host_path.path, "type": "Directory"}}
    else:
        image = volume.image
        assert image is not None  # the type holds exactly one of the three
        source = {"image": {"reference": image.reference, "pullPolicy": image.pull_policy.value}}
    path = MODELS if volume.path in (".", "") else f"{MODELS}/{volume.path}"
    return ModelFiles(
        path=path,
        volumes=({"name": "models", **source},),
        mounts=({"name": "models", "mountPath": MODELS, "readOnly": True},),
    )


def store_url(intent: Intent) -> str:
    """Where the store serves the compiled models."""
    host = f"{intent.name}-store.{intent.namespace}.svc.{intent.settings.cluster_domain}"
    return f"http://{host}:{names.STORE_PORT}"


def _cache(intent: Intent) -> Object:
    directory = intent.settings.node_cache
    if not directory:
        return {"name": "models", "emptyDir": {}}
    return {"name": "models", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}


def _cache_owner(intent: Intent) -> Sequence[Object]:
    """The kubelet makes a host directory as root; this hands it to the user of the stages, and does nothing else."""
    own = container(
        "cache-owner",
        intent.stage_image,
        ["chown", f"{USER}:{USER}", MODELS],
        intent,
        requests={"cpu": "10m", "memory": "32Mi"},
        limits={"memory": "32Mi"},
        mounts=({"name": "models", "mountPath": MODELS},),
    )
    own["securityContext"] |= {
        "runAsUser": 0,
        "runAsNonRoot": False,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }
    return (own,)
