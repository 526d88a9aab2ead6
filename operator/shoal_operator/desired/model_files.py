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
class Root:
    """What the volume of a model is called in its pod, where it lies, and what fills it."""

    volume: str = "models"
    path: str = MODELS
    pull: str = "pull"


MODEL: Final = Root()


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a pod finds the model directory, and what makes it be there."""

    path: str
    volumes: tuple[Object, ...]
    mounts: tuple[Object, ...]
    init: tuple[Object, ...] = ()


def model_files(intent: Intent, facts: ModelFacts, blocks: tuple[int, int] | None, root: Root = MODEL) -> ModelFiles:
    """The model directory for a pod that needs blocks [start, end), or only the tokenizer (None)."""
    volume = intent.model.spec.model.volume
    if volume is not None:
        return mounted(volume, root)
    digest = facts.digest or ""
    cached = blocks is not None
    pull = [
        "python",
        "-m",
        "shoal_stage.store",
        "pull",
        f"--from={store_url(intent)}",
        f"--digest={digest}",
        f"--into={root.path}",
        *([f"--blocks={blocks[0]}:{blocks[1]}"] if blocks else []),
    ]
    mounts = ({"name": root.volume, "mountPath": root.path},)
    init = container(
        root.pull,
        intent.stage_image,
        pull,
        intent,
        requests={"cpu": "50m", "memory": PULL_MEMORY},
        limits={"memory": PULL_MEMORY},
        mounts=mounts,
    )
    owner = _cache_owner(intent, root) if cached and intent.settings.node_cache else ()
    return ModelFiles(
        path=f"{root.path}/{digest}",
        volumes=(_cache(intent, root) if cached else {"name": root.volume, "emptyDir": {}},),
        mounts=mounts,
        init=(*owner, init),
    )


def mounted(volume: Volume, root: Root = MODEL) -> ModelFiles:
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
    path = root.path if volume.path in (".", "") else f"{root.path}/{volume.path}"
    return ModelFiles(
        path=path,
        volumes=({"name": root.volume, **source},),
        mounts=({"name": root.volume, "mountPath": root.path, "readOnly": True},),
    )


def store_url(intent: Intent) -> str:
    """Where the store serves the compiled models."""
    host = f"{intent.name}-store.{intent.namespace}.svc.{intent.settings.cluster_domain}"
    return f"http://{host}:{names.STORE_PORT}"


def _cache(intent: Intent, root: Root) -> Object:
    directory = intent.settings.node_cache
    if not directory:
        return {"name": root.volume, "emptyDir": {}}
    return {"name": root.volume, "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}


def _cache_owner(intent: Intent, root: Root) -> Sequence[Object]:
    """The kubelet makes a host directory as root; this hands it to the user of the stages, and does nothing else."""
    own = container(
        "cache-owner",
        intent.stage_image,
        ["chown", f"{USER}:{USER}", root.path],
        intent,
        requests={"cpu": "10m", "memory": "32Mi"},
        limits={"memory": "32Mi"},
        mounts=({"name": root.volume, "mountPath": root.path},),
    )
    own["securityContext"] |= {
        "runAsUser": 0,
        "runAsNonRoot": False,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }
    return (own,)
