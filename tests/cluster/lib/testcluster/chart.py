"""The chart's rights without its operator: tests run the operator themselves, as the chart's ServiceAccount."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from testcluster.api import Api, Manifest
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubectl import Command
from testcluster.tokens import service_account_kubeconfig

RELEASE: Final = "shoal"
SERVICE_ACCOUNT: Final = "shoal-operator"
_RIGHTS: Final = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def rendered(helm: Command, chart: Path, namespace: str, values: dict[str, Any], folder: Path) -> list[Manifest]:
    """What the chart installs into the namespace."""
    file = folder / f"{namespace}-values.json"
    file.write_text(json.dumps(values))
    text = helm("template", RELEASE, str(chart), "--namespace", namespace, "--values", str(file))
    return [each for each in yaml.safe_load_all(text) if each]


def grant(api: Api, manifests: list[Manifest], namespace: str, folder: Path) -> Kubeconfig:
    """Apply the chart's ServiceAccount and roles; returns the kubeconfig of that ServiceAccount."""
    for manifest in manifests:
        if manifest["kind"] in _RIGHTS:
            api.apply(manifest, namespace=namespace)
    return service_account_kubeconfig(api, namespace, SERVICE_ACCOUNT, folder)


def withdraw(api: Api, manifests: list[Manifest]) -> None:
    """Remove the roles that belong to no namespace; the others go with theirs."""
    for manifest in manifests:
        if manifest["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            api.delete(manifest["apiVersion"], f"{manifest['kind'].lower()}s", manifest["metadata"]["name"])
