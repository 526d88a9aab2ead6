"""The chart on a real API server: installed, tested, upgraded, removed; with the rights that it grants, no others."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testcluster.api import Api, Manifest
from testcluster.chart import CHART, earlier_chart
from testcluster.control_plane import ControlPlane
from testcluster.crds import CRDS, wait_until_served
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubectl import Command, CommandFailed
from testcluster.kubelet import SUCCEEDED, Kubelet, everything_works
from testcluster.nodes import Nodes
from testcluster.processes import wait_until
from testcluster.tokens import service_account_kubeconfig

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
NODE = {"name": "pc-1", "memory": {"total": "32Gi", "free": "20Gi"}}
NAMESPACED = {"mode": "Namespaced", "nodes": [NODE]}
EVERYTHING = {
    "images": {"operator": {"repository": "registry.local/operator", "digest": "sha256:" + "0" * 64}},
    "imagePullSecrets": ["registry"],
    "nodes": [NODE],
    "priorityClass": {"name": "shoal-everything", "value": -1000},
    "operator": {"supplementalGroups": [109], "storageClass": "fast"},
    "serviceAccount": {"name": "somebody", "annotations": {"example.com/a": "b"}},
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"example.com/a": "b"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
MODEL = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "ShardedModel",
    "metadata": {"name": "llama"},
    "spec": {"model": {"source": {"uri": "hf://org/model"}}},
}


@pytest.fixture
def pc(nodes: Nodes, kubelet: Kubelet) -> str:
    """A PC whose kubelet starts every pod; the pods of `helm test` succeed."""
    kubelet.decide(
        lambda pod: SUCCEEDED if "helm.sh/hook" in pod["metadata"].get("annotations", {}) else everything_works(pod)
    )
    return nodes.add_lunar_lake("8Gi", prefix=f"pc-{uuid.uuid4().hex[:4]}")[0]


@pytest.fixture
def release(namespace: str, helm: Command, no_crd: None) -> Iterator[str]:
    """The name of a release that the test installs; removed afterwards, when it is still there."""
    yield "shoal"
    helm("uninstall", "shoal", "-n", namespace, "--ignore-not-found", "--wait")


def values_file(tmp_path: Path, values: dict[str, Any]) -> str:
    file = tmp_path / f"values-{uuid.uuid4().hex[:6]}.json"
    file.write_text(json.dumps(values))
    return str(file)


@pytest.mark.parametrize("values", [{}, NAMESPACED, EVERYTHING], ids=["default", "namespaced", "everything"])
def test_every_manifest_passes_the_api_servers_dry_run(helm, admin, namespace, crd, tmp_path, values):
    text = helm("template", "shoal", str(CHART), "-n", namespace, "--values", values_file(tmp_path, values))
    manifests = [each for each in yaml.safe_load_all(text) if each]
    assert len(manifests) > 5
    for manifest in manifests:
        held = admin.apply(manifest, namespace=namespace, dry_run=True)
        assert held["kind"] == manifest["kind"]


def test_pods_are_admitted_where_only_restricted_ones_are(helm, admin, namespace, crd):
    admin.patch(
        "v1", "namespaces", namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    )
    manifests = [each for each in yaml.safe_load_all(helm("template", "shoal", str(CHART), "-n", namespace)) if each]
    admin.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "shoal-operator"}}, namespace=namespace
    )
    (deployment,) = [each for each in manifests if each["kind"] == "Deployment"]
    (test,) = [each for each in manifests if each["kind"] == "Pod"]
    template = deployment["spec"]["template"]
    operator = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", **template["metadata"]}}
    for pod in (operator | {"spec": template["spec"]}, test):
        admin.create(pod, namespace=namespace, dry_run=True)


def test_install_says_the_next_command_and_helm_test_passes(helm, kubectl, namespace, release, pc):
    shown = helm("install", release, str(CHART), "-n", namespace, "--wait", "--timeout", "60s")
    assert "kubectl label node NAME shoal.dev/platform=lunar-lake" in shown
    # What the notes say works as it is written.
    command = shown[shown.index("kubectl apply -n default -f - <<'MODEL'\n") :]
    manifest = command.split("<<'MODEL'\n")[1].split("\nMODEL\n")[0]
    kubectl("apply", "-n", namespace, "-f", "-", "--dry-run=server", stdin=manifest)
    tested = helm("test", release, "-n", namespace, "--timeout", "60s")
    assert "Succeeded" in tested


def test_case_99_models_survive_the_operator(helm, admin, namespace, release, pc):
    helm("install", release, str(CHART), "-n", namespace)
    model = wait_for_create(admin, namespace)
    shown = helm("uninstall", release, "-n", namespace, "--wait")
    assert "kept due to the resource policy" in shown
    assert admin.get("shoal.dev/v1alpha1", "shardedmodels", "llama", namespace=namespace) == model
    # Nothing is left that would hold it, also when nobody serves it any more.
    admin.delete("shoal.dev/v1alpha1", "shardedmodels", "llama", namespace=namespace)
    assert admin.find("shoal.dev/v1alpha1", "shardedmodels", "llama", namespace=namespace) is None
    helm("install", release, str(CHART), "-n", namespace)


def wait_for_create(admin: Api, namespace: str) -> Manifest:
    """A ShardedModel of the CRD that was installed just now."""
    crd = yaml.safe_load(next((ROOT / "crds").glob("*.yaml")).read_text())
    wait_until_served(admin, crd)
    return admin.create(MODEL, namespace=namespace)


def test_case_96_an_upgrade_changes_the_crd_and_restarts_nothing_that_need_not(
    helm, admin, namespace, release, pc, tmp_path
):
    helm("install", release, str(earlier_chart(tmp_path, "0.0.9", without="recovery")), "-n", namespace)
    model = wait_for_create(admin, namespace)
    assert "recovery" not in model["spec"]
    before = admin.get("apps/v1", "deployments", "shoal-operator", namespace=namespace)
    helm("upgrade", release, str(CHART), "-n", namespace)
    held = admin.get("shoal.dev/v1alpha1", "shardedmodels", "llama", namespace=namespace)
    # The same object under the new schema: its new field has its default, and it was never written.
    assert held["metadata"]["uid"] == model["metadata"]["uid"]
    assert held["metadata"]["resourceVersion"] == model["metadata"]["resourceVersion"]
    wait_until(
        lambda: "recovery" in admin.get("shoal.dev/v1alpha1", "shardedmodels", "llama", namespace=namespace)["spec"],
        what="the default of the new field",
        deadline_s=DEADLINE_S,
    )
    after = admin.get("apps/v1", "deployments", "shoal-operator", namespace=namespace)
    assert after["metadata"]["labels"]["helm.sh/chart"] != before["metadata"]["labels"]["helm.sh/chart"]
    assert after["spec"]["template"] == before["spec"]["template"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_kinds_of_others_are_installed_where_the_cluster_has_them(helm, admin, namespace, release):
    names = [
        foreign_crd(admin, "monitoring.coreos.com", "v1", "ServiceMonitor", "Namespaced"),
        foreign_crd(admin, "monitoring.coreos.com", "v1", "PodMonitor", "Namespaced"),
        foreign_crd(admin, "monitoring.coreos.com", "v1", "PrometheusRule", "Namespaced"),
        foreign_crd(admin, "nfd.k8s-sigs.io", "v1alpha1", "NodeFeatureRule", "Cluster"),
    ]
    try:
        shown = helm("install", release, str(CHART), "-n", namespace)
        assert "kubectl label node" not in shown
        assert len(admin.list("monitoring.coreos.com/v1", "servicemonitors", namespace=namespace)) == 1
        assert len(admin.list("monitoring.coreos.com/v1", "podmonitors", namespace=namespace)) == 1
        assert len(admin.list("monitoring.coreos.com/v1", "prometheusrules", namespace=namespace)) == 1
        assert len(admin.list("nfd.k8s-sigs.io/v1alpha1", "nodefeaturerules")) == 1
        helm("uninstall", release, "-n", namespace, "--wait")
    finally:
        for name in names:
            admin.delete(*CRDS, name)


def foreign_crd(admin: Api, group: str, version: str, kind: str, scope: str) -> str:
    """A CRD that has the name of somebody else's and takes everything."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
    admin.apply(crd)
    wait_until_served(admin, crd)
    return f"{plural}.{group}"


def allowed(kubeconfig: Kubeconfig, namespace: str, verb: str, group: str, resource: str) -> bool:
    """Whether the API server would let the user do it."""
    plural, _, subresource = resource.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    with Api(kubeconfig) as somebody:
        answer = somebody.request(
            "POST", somebody.path("authorization.k8s.io/v1", "selfsubjectaccessreviews"), json=review
        )
    return bool(answer["status"]["allowed"])


NEVER = [
    ("create", "", "pods/exec"),
    ("create", "", "pods"),
    ("delete", "", "secrets"),
    ("delete", "", "persistentvolumeclaims"),
    ("patch", "", "nodes"),
    ("create", "shoal.dev", "shardedmodels"),
    ("delete", "shoal.dev", "shardedmodels"),
    ("patch", "shoal.dev", "shardedmodels"),
    ("escalate", "rbac.authorization.k8s.io", "roles"),
    ("bind", "rbac.authorization.k8s.io", "roles"),
    ("create", "rbac.authorization.k8s.io", "clusterroles"),
    ("*", "", "*"),
]


@pytest.mark.parametrize(("verb", "group", "resource"), NEVER)
def test_the_operator_may_not(chart_service_account: Kubeconfig, namespace, verb, group, resource):
    assert not allowed(chart_service_account, namespace, verb, group, resource)


@pytest.mark.parametrize(
    ("verb", "group", "resource"),
    [("list", "shoal.dev", "shardedmodels"), ("patch", "shoal.dev", "shardedmodels/status"), ("watch", "", "nodes")],
)
def test_the_operator_may(chart_service_account: Kubeconfig, namespace, verb, group, resource):
    assert allowed(chart_service_account, namespace, verb, group, resource)


def test_case_106_a_namespaces_admin_installs_and_the_operator_stays_inside(
    helm_program: Path, helm: Command, admin: Api, control_plane: ControlPlane, namespace, crd, tmp_path
):
    # A cluster's administrator gave the CRD and the roles for users once ...
    users = helm("template", "shoal", str(CHART), "-n", "shoal-system", "--show-only", "templates/users.yaml")
    roles = [each for each in yaml.safe_load_all(users) if each]
    for role in roles:
        admin.apply(role)
    # ... and somebody who is admin of one namespace, and of nothing else, installs.
    admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "teacher"}}, namespace=namespace)
    subject = {"kind": "ServiceAccount", "name": "teacher", "namespace": namespace}
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "teacher"}}
    admin.create(binding | {"roleRef": role_ref, "subjects": [subject]}, namespace=namespace)
    teacher = service_account_kubeconfig(admin, namespace, "teacher", tmp_path)
    wait_until(
        lambda: allowed(teacher, namespace, "patch", "shoal.dev", "shardedmodels/status"),
        what="the aggregated roles",
        deadline_s=DEADLINE_S,
    )
    values = values_file(tmp_path, NAMESPACED)
    theirs = Command(program=helm_program, kubeconfig=teacher, home=tmp_path)
    theirs("install", "shoal", str(CHART), "-n", namespace, "--values", values)
    operator = service_account_kubeconfig(admin, namespace, "shoal-operator", tmp_path)
    assert allowed(operator, namespace, "create", "apps", "deployments")
    assert not allowed(operator, "default", "list", "", "secrets")
    assert not allowed(operator, "default", "list", "shoal.dev", "shardedmodels")
    assert not allowed(operator, "", "list", "", "nodes")
    with pytest.raises(CommandFailed, match="forbidden"):
        theirs("install", "wide", str(CHART), "-n", namespace)
    theirs("uninstall", "shoal", "-n", namespace)
    for role in roles:
        admin.delete("rbac.authorization.k8s.io/v1", "clusterroles", role["metadata"]["name"])


def test_users_who_edit_a_namespace_edit_its_models(helm, admin, namespace, crd, tmp_path):
    roles = [
        each
        for each in yaml.safe_load_all(
            helm("template", "shoal", str(CHART), "-n", namespace, "--show-only", "templates/users.yaml")
        )
        if each
    ]
    for role in roles:
        admin.apply(role)
    for name in ("view", "edit"):
        admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace=namespace)
        admin.create(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            },
            namespace=namespace,
        )
    viewer, editor = (service_account_kubeconfig(admin, namespace, name, tmp_path) for name in ("view", "edit"))
    wait_until(
        lambda: allowed(editor, namespace, "create", "shoal.dev", "shardedmodels"),
        what="the aggregated roles",
        deadline_s=DEADLINE_S,
    )
    assert allowed(viewer, namespace, "list", "shoal.dev", "shardedmodels")
    assert not allowed(viewer, namespace, "create", "shoal.dev", "shardedmodels")
    assert allowed(editor, namespace, "patch", "shoal.dev", "shardedmodels/scale")
    assert not allowed(editor, namespace, "patch", "shoal.dev", "shardedmodels/status")
    for role in roles:
        admin.delete("rbac.authorization.k8s.io/v1", "clusterroles", role["metadata"]["name"])
