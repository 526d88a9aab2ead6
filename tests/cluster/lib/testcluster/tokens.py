"""Kubeconfigs for ServiceAccounts: what is tested acts with the rights that it has in production."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from testcluster.api import Api
from testcluster.audit import service_account_user
from testcluster.kubeconfig import Kubeconfig

_LIFETIME_S: Final = 6 * 3600


def service_account_kubeconfig(api: Api, namespace: str, name: str, folder: Path) -> Kubeconfig:
    """A kubeconfig that authenticates as the ServiceAccount, by a token that the API server issues for it."""
    answer = api.request(
        "POST",
        api.path("v1", "serviceaccounts/token", name, namespace=namespace),
        json={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _LIFETIME_S},
        },
    )
    return Kubeconfig.write(
        folder / f"{namespace}-{name}.kubeconfig",
        server=api.kubeconfig.server,
        authority=api.kubeconfig.authority,
        user=service_account_user(namespace, name),
        token=answer["status"]["token"],
        namespace=namespace,
    )
