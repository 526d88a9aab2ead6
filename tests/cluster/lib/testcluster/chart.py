"""The chart as tests need it: its rights without its operator, which tests run themselves as the chart's
ServiceAccount, and the chart as an earlier version had it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import yaml

from testcluster.api import Api, Manifest
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubectl import Command
from testcluster.tokens import service_account_kubeconfig

CHART: Final = Path(__file__).parents[4] / "charts/shoal"
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


def earlier_chart(folder: Path, version: str, *, without: str, images: str | None = None) -> Path:
    """The chart as an earlier version had it: its version, a CRD that lacks a field of the spec, and other images."""
    chart = folder / "earlier"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text()) | {"version": version}
    about["appVersion"] = images or about["appVersion"]
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about))
    (file,) = (chart / "files/crds").glob("*.yaml")
    crd = yaml.safe_load(file.read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][without]
    file.write_text(yaml.safe_dump(crd, sort_keys=False))
    return chart
