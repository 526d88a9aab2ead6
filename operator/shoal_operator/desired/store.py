"""The store: a claim with the compiled models, and a static HTTP server in front of it that the stages pull from."""

from __future__ import annotations

from typing import Final

from shoal_operator import names
from shoal_operator.cluster.kinds import CLAIM, DEPLOYMENT, SERVICE, Object
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.pod import container, pod_spec

STORE: Final = "/store"


def claim_name(intent: Intent) -> str:
    """The claim that compile Job and store share."""
    return f"{intent.name}-store"


def store_claim(intent: Intent) -> Object:
    """The claim. Its size cannot be changed later in many clusters, so it comes from the settings, not from a guess."""
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": intent.settings.store_size}},
    }
    if intent.settings.storage_class:
        spec["storageClassName"] = intent.settings.storage_class
    return intent.owned(CLAIM, claim_name(intent), names.STORE, {"spec": spec})


def store_deployment(intent: Intent) -> Object:
    """The HTTP server; one of it, on the node that has the claim."""
    server = container(
        "store",
        intent.stage_image,
        [
            "python",
            "-m",
            "shoal_stage.store",
            "serve",
            f"--directory={STORE}/models",
            f"--listen=0.0.0.0:{names.STORE_PORT}",
        ],
        intent,
        requests={"cpu": "50m", "memory": "96Mi"},
        limits={"memory": "256Mi"},
        mounts=({"name": "store", "mountPath": STORE, "readOnly": True},),
        ports=[{"name": "http", "containerPort": names.STORE_PORT}],
        readinessProbe={"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 3},
        livenessProbe={"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 20, "timeoutSeconds": 5},
    )
    pod = pod_spec(
        intent,
        [server],
        volumes=({"name": "store", "persistentVolumeClaim": {"claimName": claim_name(intent)}},),
    )
    labels = names.labels(intent.name, names.STORE)
    return intent.owned(
        DEPLOYMENT,
        claim_name(intent),
        names.STORE,
        {
            "spec": {
                "replicas": 1,
                "revisionHistoryLimit": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": names.selector(intent.name, names.STORE)},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            }
        },
    )


def store_service(intent: Intent) -> Object:
    """Its Service."""
    return intent.owned(
        SERVICE,
        claim_name(intent),
        names.STORE,
        {
            "spec": {
                "selector": names.selector(intent.name, names.STORE),
                "ports": [{"name": "http", "port": names.STORE_PORT, "targetPort": "http", "appProtocol": "http"}],
            }
        },
    )
