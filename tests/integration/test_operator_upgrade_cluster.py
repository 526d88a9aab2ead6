"""An upgrade on a real API server: the previous version's CRD and ShardedModels, then `helm upgrade` and its operator.

What must not happen: a pod that starts anew although nothing of it changed, a model that is compiled or fetched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testcluster.api import Api, Manifest
from testcluster.audit import AuditLog, service_account_user
from testcluster.chart import CHART, RELEASE, SERVICE_ACCOUNT, earlier_chart
from testcluster.crds import CRDS
from testcluster.kubectl import Command
from testcluster.kubelet import Kubelet
from testcluster.nodes import Nodes
from testcluster.operating import DEADLINE_S, Cluster, all_well, example, start_operator_process, written
from testcluster.processes import Process, wait_until
from testcluster.tokens import service_account_kubeconfig

PINNED = {"image": {part: f"registry.local/{part}:1" for part in ("stage", "compile", "router")}}
# What the test decides: ports of this machine, a Lease that ends soon.
OURS = ("SHOAL_METRICS_PORT", "SHOAL_HEALTH_PORT", "SHOAL_PAGE_PORT", "SHOAL_LEASE_SECONDS", "SHOAL_LOG_FORMAT")
LIGHT: dict[str, Any] = {"stages": {"count": 2}, "placement": {}, "scheduler": {"streams": 1}}


def of_earlier_version(name: str, **spec: Any) -> Manifest:
    """A ShardedModel as it could be written when the spec had no `recovery`."""
    body = example(name, **LIGHT, **spec)
    del body["spec"]["recovery"]
    return body


@pytest.fixture
def released(
    helm: Command, admin: Api, namespace: str, no_crd: None, nodes: Nodes, kubelet: Kubelet, storage: str
) -> Iterator[None]:
    """Five PCs and a cluster without shoal; the release that the test installs is removed afterwards."""
    kubelet.decide(all_well)
    nodes.add_lunar_lake("28Gi", "14Gi", "14Gi", "12Gi", "10Gi")
    yield
    helm("uninstall", RELEASE, "-n", namespace, "--ignore-not-found", "--wait")


@pytest.fixture
def run_installed(admin: Api, namespace: str, tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    """Runs the operator that the release's Deployment describes: with its environment, as its ServiceAccount."""
    running: list[Process] = []

    def run(name: str) -> Process:
        deployment = admin.get("apps/v1", "deployments", f"{RELEASE}-operator", namespace=namespace)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        given = {
            each["name"]: each["value"] for each in container["env"] if "value" in each and each["name"] not in OURS
        }
        kubeconfig = service_account_kubeconfig(admin, namespace, SERVICE_ACCOUNT, tmp_path)
        process = start_operator_process(name, tmp_path, kubeconfig, SHOAL_NAMESPACE=namespace, **given)
        running.append(process)
        return process

    yield run
    for process in running:
        process.stop()


def test_case_48_case_96_an_upgrade_restarts_nothing_that_need_not_and_downloads_nothing(
    released: None,
    run_installed: Callable[[str], Process],
    helm: Command,
    admin: Api,
    namespace: str,
    cluster: Cluster,
    audit: AuditLog,
    tmp_path: Path,
) -> None:
    operator = service_account_user(namespace, SERVICE_ACCOUNT)
    earlier = earlier_chart(tmp_path, "0.0.9", without="recovery", images="0.0.9")
    helm("install", RELEASE, str(earlier), "-n", namespace)
    previous = run_installed("operator-before")
    names = ("pinned", "free")
    admin.apply(of_earlier_version("pinned", **PINNED), namespace=namespace)
    admin.apply(of_earlier_version("free"), namespace=namespace)
    for name in names:
        cluster.wait_for("Ready", name=name)
    pods = {name: cluster.pods(name) for name in names}
    assert all(len(each) == 3 for each in pods.values()), pods
    kept = {name: child(admin, namespace, "persistentvolumeclaims", f"{name}-store") for name in names}
    kept |= {f"{name}-facts": child(admin, namespace, "configmaps", f"{name}-facts") for name in names}
    previous.stop()
    mark = audit.mark()

    helm("upgrade", RELEASE, str(CHART), "-n", namespace)
    schema = admin.get(*CRDS, "shardedmodels.shoal.dev")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "recovery" in schema["properties"]["spec"]["properties"]
    run_installed("operator-after")
    # The one whose images are the operator's gets new ones ...
    wait_until(
        lambda: not set(pods["free"].values()) & set(cluster.pods("free").values()),
        what="pods with the new images",
        deadline_s=DEADLINE_S,
    )
    cluster.wait_for("Ready", name="free")
    writes = written(audit, operator, mark)
    # ... and the one that names its images is not touched: not one of its children is written, not one pod is new.
    assert cluster.pods("pinned") == pods["pinned"]
    assert [each for each in writes if each[2].startswith("pinned") and each[1] != "shardedmodels/status"] == []
    # No model is compiled or fetched anew: a Job that is done may go, none is made, and what was known is still known.
    assert [each for each in writes if each[1] in ("jobs", "persistentvolumeclaims") and each[0] != "delete"] == []
    for name in names:
        assert child(admin, namespace, "persistentvolumeclaims", f"{name}-store") == kept[name]
        assert child(admin, namespace, "configmaps", f"{name}-facts") == kept[f"{name}-facts"]
        assert cluster.condition("Ready", name)["status"] == "True"


def child(admin: Api, namespace: str, resource: str, name: str) -> str:
    """The uid of a child: another one would be another object."""
    return str(admin.get("v1", resource, name, namespace=namespace)["metadata"]["uid"])
