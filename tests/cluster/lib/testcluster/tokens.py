"""Kubeconfigs for ServiceAccounts: what is tested acts with the rights that it has in production."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from testcluster.api import Api, Manifest
from testcluster.audit import service_account_user
from testcluster.kubeconfig import Kubeconfig

_LIFETIME_S: Final = 6 * 3600


def service_account_kubeconfig(
    api: Api, namespace: str, name: str, folder: Path, pod: Manifest | None = None
) -> Kubeconfig:
    """A kubeconfig that authenticates as the ServiceAccount, by a token that the API server issues for it.

    With `pod` it is the token of that pod, as its kubelet would have got it: it names the pod and its node.
    """
    bound: Manifest = {}
    if pod is not None:
        about = pod["metadata"]
        reference = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
        bound = {"boundObjectRef": reference}
    answer = api.request(
        "POST",
        api.path("v1", "serviceaccounts/token", name, namespace=namespace),
        json={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _LIFETIME_S, **bound},
        },
    )
    return Kubeconfig.write(
        folder / f"{namespace}-{pod['metadata']['name'] if pod is not None else name}.kubeconfig",
        server=api.kubeconfig.server,
        authority=api.kubeconfig.authority,
        user=service_account_user(namespace, name),
        token=answer["status"]["token"],
        namespace=namespace,
    )
