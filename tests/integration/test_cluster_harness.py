"""The control plane of the tests is the real thing, and what its helpers pretend, the cluster believes."""

from __future__ import annotations

from typing import Any

import pytest

from testcluster.api import Api, Refused
from testcluster.audit import service_account_user
from testcluster.binaries import KUBERNETES_VERSION
from testcluster.kubelet import IMAGE_PULL_BACK_OFF, OOM_KILLED, RUNNING, PodFate
from testcluster.nodes import NodeSpec
from testcluster.processes import wait_until
from testcluster.tokens import service_account_kubeconfig

DEADLINE_S = 60.0


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "registry.test/none:1"}
    container |= {"resources": {"limits": spec.pop("limits", {"memory": "1Gi"})}}
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def deployment(name: str, replicas: int = 1) -> dict[str, Any]:
    template = pod(name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
        },
    }


def config_map(name: str, **extra: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **extra}, "data": {"key": "value"}}


def node_of(admin: Api, namespace: str, name: str) -> str:
    return wait_until(
        lambda: admin.get("v1", "pods", name, namespace=namespace)["spec"].get("nodeName"),
        what=f"a node for pod {name}",
        deadline_s=DEADLINE_S,
    )


def test_it_is_the_version_that_it_says(control_plane, admin, kubectl):
    assert admin.request("GET", "/version")["gitVersion"] == f"v{KUBERNETES_VERSION}"
    assert f"Server Version: v{KUBERNETES_VERSION}" in kubectl("version")
    control_plane.check_running()


def test_writes_are_counted_by_user(admin, namespace, audit):
    before = audit.mark()
    admin.apply(config_map("counted"), namespace=namespace)
    admin.apply(config_map("counted"), namespace=namespace)
    admin.apply(config_map("only-asked"), namespace=namespace, dry_run=True)
    admin.get("v1", "configmaps", "counted", namespace=namespace)
    found = [write for write in audit.writes(user="admin", since=before) if write.namespace == namespace]
    assert [(write.verb, write.what, write.name) for write in found] == [("patch", "configmaps", "counted")] * 2
    assert [write.code for write in found] == [201, 200]
    assert audit.writes(user="admin", since=audit.mark()) == []


def test_a_service_account_has_its_own_rights_only(admin, namespace, audit, tmp_path):
    config = service_account_kubeconfig(admin, namespace, "default", tmp_path)
    before = audit.mark()
    with Api(config) as somebody, pytest.raises(Refused, match=r"cannot create resource .configmaps"):
        somebody.create(config_map("denied"), namespace=namespace)
    (denied,) = audit.writes(user=service_account_user(namespace, "default"), since=before)
    assert (denied.verb, denied.code) == ("create", 403)


def test_unknown_fields_are_refused(admin, namespace):
    with pytest.raises(Refused, match=r"unknown field .*dataa"):
        admin.create(config_map("typo") | {"dataa": {}}, namespace=namespace)


def test_owned_objects_go_with_their_owner(admin, namespace):
    owner = admin.create(config_map("owner"), namespace=namespace)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    admin.create(config_map("owned", ownerReferences=[reference]), namespace=namespace)
    admin.delete("v1", "configmaps", "owner", namespace=namespace)
    wait_until(
        lambda: admin.find("v1", "configmaps", "owned", namespace=namespace) is None,
        what="the end of the owned object",
        deadline_s=DEADLINE_S,
    )


def test_pods_are_scheduled_by_memory_and_device(admin, namespace, nodes):
    small, large = nodes.add_lunar_lake("4Gi", "28Gi")
    nodes.add(NodeSpec(name="server", memory="256Gi", devices={}, labels={}))
    want = {"memory": "8Gi", "gpu.intel.com/xe": "1"}
    admin.create(pod("stage", limits=want), namespace=namespace)
    assert node_of(admin, namespace, "stage") == large
    # Its GPU is taken now, the small one has no room, the server has no GPU.
    admin.create(pod("second", limits=want), namespace=namespace)

    def unschedulable() -> str:
        status = admin.get("v1", "pods", "second", namespace=namespace)["status"]
        return next((each["message"] for each in status.get("conditions", []) if each["status"] == "False"), "")

    message = wait_until(unschedulable, what="the scheduler's reason", deadline_s=DEADLINE_S)
    assert "Insufficient gpu.intel.com/xe" in message
    assert small in [node["metadata"]["name"] for node in admin.list("v1", "nodes")]


def test_pods_leave_a_lost_node_when_their_toleration_ends(admin, namespace, nodes):
    # A second node that stays: where all nodes are gone, the cluster takes itself for the one that is cut off.
    name, _ = nodes.add_lunar_lake("8Gi", "1Gi")
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    manifest = pod("stage", limits={"memory": "2Gi"}, tolerations=[unreachable | {"tolerationSeconds": 1}])
    admin.create(manifest, namespace=namespace)
    assert node_of(admin, namespace, "stage") == name
    nodes.lose(name)
    wait_until(
        lambda: admin.get("v1", "pods", "stage", namespace=namespace)["metadata"].get("deletionTimestamp"),
        what="the eviction",
        deadline_s=DEADLINE_S,
    )
    nodes.set_ready(name, "True")


def test_a_claim_gets_a_volume_where_its_first_pod_goes(admin, namespace, nodes, kubelet, storage):
    claim: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "store"}}
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    admin.create(claim | {"spec": wanted}, namespace=namespace)
    nodes.add_lunar_lake("8Gi", "8Gi", "8Gi")
    volumes = [{"name": "store", "persistentVolumeClaim": {"claimName": "store"}}]
    admin.create(pod("first", volumes=volumes), namespace=namespace)
    where = node_of(admin, namespace, "first")
    bound = admin.get("v1", "persistentvolumeclaims", "store", namespace=namespace)
    assert (bound["status"]["phase"], bound["spec"]["storageClassName"]) == ("Bound", storage)
    volume = bound["spec"]["volumeName"]
    # Every later pod goes to the volume, although the other nodes are empty.
    for name in ("second", "third"):
        admin.create(pod(name, volumes=volumes), namespace=namespace)
        assert node_of(admin, namespace, name) == where
    for name in ("first", "second", "third"):
        admin.delete("v1", "pods", name, namespace=namespace)
    admin.delete("v1", "persistentvolumeclaims", "store", namespace=namespace)
    wait_until(
        lambda: admin.find("v1", "persistentvolumes", volume) is None,
        what="the end of the volume that nobody claims",
        deadline_s=DEADLINE_S,
    )


def test_kubelet_makes_deployments_available_and_jobs_complete(admin, namespace, nodes, kubelet, kubectl):
    nodes.add_lunar_lake("8Gi")
    admin.create(deployment("web", replicas=2), namespace=namespace)
    job = {"restartPolicy": "Never", **pod("compile")["spec"]}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "compile"}}
    admin.create(manifest | {"spec": {"template": {"spec": job}}}, namespace=namespace)
    kubectl("wait", "-n", namespace, "--for=condition=Available", "deployment/web", "--timeout=60s")
    kubectl("wait", "-n", namespace, "--for=condition=Complete", "job/compile", "--timeout=60s")
    admin.delete("apps/v1", "deployments", "web", namespace=namespace)
    wait_until(
        lambda: not admin.list("v1", "pods", namespace=namespace, labels="app=web"),
        what="the end of the deployment's pods",
        deadline_s=DEADLINE_S,
    )


def test_kubelet_reports_the_fate_that_the_test_decides(admin, namespace, nodes, kubelet, kubectl):
    nodes.add_lunar_lake("8Gi")
    fates: dict[str, PodFate] = {"killed": OOM_KILLED, "absent": IMAGE_PULL_BACK_OFF}
    kubelet.decide(lambda each: fates.get(each["metadata"]["name"], RUNNING))
    for name in ("killed", "absent", "well"):
        admin.create(pod(name), namespace=namespace)
    wait_until(
        lambda: "1/1" in kubectl("get", "pod", "-n", namespace, "well"),
        what="the pod that is well",
        deadline_s=DEADLINE_S,
    )

    def shown() -> dict[str, str]:
        rows = kubectl("get", "pods", "-n", namespace, "--no-headers").splitlines()
        return {row.split()[0]: row.split()[2] for row in rows}

    wait_until(
        lambda: shown() == {"killed": "CrashLoopBackOff", "absent": "ImagePullBackOff", "well": "Running"},
        what="what kubectl shows",
        deadline_s=DEADLINE_S,
    )
    state = admin.get("v1", "pods", "killed", namespace=namespace)["status"]["containerStatuses"][0]
    assert state["lastState"]["terminated"]["reason"] == "OOMKilled"
    # A pod that recovers is reported so.
    fates["killed"] = RUNNING
    wait_until(lambda: shown()["killed"] == "Running", what="the recovery", deadline_s=DEADLINE_S)
