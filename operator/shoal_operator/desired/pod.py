"""What all pods have in common: they run as nobody in particular, with nothing writable but what they are given.

PCs belong to people: pods ask for what they need and may not take more, and carry no rights in the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal.tracing import ENDPOINT
from shoal_operator.cluster.kinds import Object
from shoal_operator.desired.intent import Intent

USER: Final = 10001
TMP: Final = {"name": "tmp", "mountPath": "/tmp"}
TMP_VOLUME: Final = {"name": "tmp", "emptyDir": {}}


def container(
    name: str,
    image: str,
    command: Sequence[str],
    intent: Intent,
    *,
    requests: Mapping[str, str],
    limits: Mapping[str, str],
    mounts: Sequence[Object] = (),
    **more: Any,
) -> Object:
    """A container with a read-only root, no capabilities, requests and limits."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": intent.model.spec.image.pull_policy.value,
        "command": list(command),
        "env": _environment(intent),
        "resources": {"requests": dict(requests), "limits": dict(limits)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [TMP, *mounts],
        **more,
    }


def _environment(intent: Intent) -> list[Object]:
    found = [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONUNBUFFERED", "value": "1"}]
    if intent.settings.otlp_endpoint:
        found.append({"name": ENDPOINT, "value": intent.settings.otlp_endpoint})
    return found


def pod_spec(
    intent: Intent,
    containers: Sequence[Object],
    *,
    volumes: Sequence[Object] = (),
    service_account: str | None = None,
    groups: Sequence[int] = (),
    **more: Any,
) -> Object:
    """The pod around containers. None gets a token of its ServiceAccount: no program of shoal's pods calls the API
    server, the router's plan comes as a mounted file."""
    secrets = dict.fromkeys(
        [*(each.name for each in intent.model.spec.image.pull_secrets), *intent.settings.image_pull_secrets]
    )
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": list(containers),
        "volumes": [TMP_VOLUME, *volumes],
        **more,
    }
    if groups:
        spec["securityContext"]["supplementalGroups"] = list(groups)
    if service_account is not None:
        spec["serviceAccountName"] = service_account
    if secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    return spec


def tolerations(intent: Intent, seconds: int) -> list[Object]:
    """The user's tolerations; a node that is gone keeps its pod for `seconds` only, not Kubernetes' 300."""
    theirs = [
        each.model_dump(by_alias=True, exclude_none=True, mode="json")
        for each in intent.model.spec.placement.tolerations
    ]
    gone = [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for what in ("not-ready", "unreachable")
    ]
    return [*theirs, *gone]
