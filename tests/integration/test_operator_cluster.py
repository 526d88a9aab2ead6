"""The operator on a real API server, as the chart's ServiceAccount: what it makes, and how it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.manifest import ModelShape
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json
from testcluster.api import Api, Manifest
from testcluster.audit import AuditLog
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubelet import OOM_KILLED, RUNNING, Kubelet, PodFate
from testcluster.nodes import Nodes
from testcluster.processes import Process, free_ports, wait_until

ROOT = Path(__file__).parents[2]
MODELS = "shoal.dev/v1alpha1", "shardedmodels"
DEADLINE_S = 60.0
MIB = 1 << 20


def report() -> str:
    """What the compile Job says of Llama 3.1 8B in INT4, nearly."""
    shape = ModelShape(
        family="llama", layers=32, hidden_size=4096, heads=32, kv_heads=8, head_size=128, vocab_size=128256,
        max_context=131072,
    )  # fmt: skip
    facts = ModelFacts(
        shape=shape,
        embed_bytes=525 * MIB,
        layer_bytes=(125 * MIB,) * 32,
        head_bytes=525 * MIB,
        largest_tensors=(525 * MIB, *(30 * MIB,) * 32, 525 * MIB),
        digest="a" * 64,
    )
    return facts_to_json(facts)


def all_well(pod: Manifest) -> PodFate:
    owners = {owner["kind"] for owner in pod["metadata"].get("ownerReferences", [])}
    return PodFate(phase="Succeeded", ready=False, message=report()) if "Job" in owners else RUNNING


def example(name: str = "llama-8b", **spec: Any) -> Manifest:
    body: Manifest = yaml.safe_load((ROOT / "examples/llama-3.1-8b.yaml").read_text())
    body["metadata"]["name"] = name
    body["spec"] |= spec
    return body


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, namespace: str, chart_service_account: Kubeconfig) -> Iterator[Start]:
    """Starts operators, and ends them."""
    running: list[Process] = []

    def start_one(name: str = "operator-0", **settings: str) -> Process:
        (health,) = free_ports(1)
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(chart_service_account.path),
            "SHOAL_NAMESPACE": namespace,
            "SHOAL_WATCH_NAMESPACES": namespace,
            "SHOAL_POD_NAME": name,
            "SHOAL_METRICS_PORT": "0",
            "SHOAL_HEALTH_PORT": str(health),
            "SHOAL_LEASE_SECONDS": "3",
            "SHOAL_LOG_FORMAT": "text",
        } | settings
        command = [sys.executable, "-m", "shoal_operator"]
        process = Process.start(name, command, log=tmp_path / f"{name}.log", environment=environment)
        running.append(process)
        return process

    yield start_one
    for process in running:
        process.stop()


@pytest.fixture
def office(crd: str, nodes: Nodes, kubelet: Kubelet, storage: str) -> list[str]:
    kubelet.decide(all_well)
    return nodes.add_lunar_lake("28Gi", "14Gi", "14Gi", "12Gi", "10Gi")


class Cluster:
    """What a test asks of the cluster."""

    def __init__(self, admin: Api, namespace: str) -> None:
        self.admin = admin
        self.namespace = namespace

    def condition(self, kind: str, name: str = "llama-8b") -> dict[str, Any]:
        body = self.admin.get(*MODELS, name, namespace=self.namespace)
        for each in body.get("status", {}).get("conditions", []):
            if each["type"] == kind:
                return dict(each)
        return {"status": "", "reason": ""}

    def wait_for(self, kind: str, status: str = "True", reason: str = "", name: str = "llama-8b") -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            condition = self.condition(kind, name)
            return condition if condition["status"] == status and reason in ("", condition["reason"]) else None

        try:
            return wait_until(found, what=f"{kind}={status} {reason}", deadline_s=DEADLINE_S)
        except Exception:
            print(json.dumps(self.admin.get(*MODELS, name, namespace=self.namespace).get("status"), indent=1))  # noqa: T201
            raise

    def replace_service(self) -> None:
        """Delete the router's Service and wait until the operator has made it anew.

        A ShardedModel is reconciled by one worker at a time: what it wrote for earlier causes was written before.
        """
        old = self.admin.get("v1", "services", "llama-8b", namespace=self.namespace)["metadata"]["uid"]
        self.admin.delete("v1", "services", "llama-8b", namespace=self.namespace)

        def anew() -> bool:
            found = self.admin.find("v1", "services", "llama-8b", namespace=self.namespace)
            return found is not None and found["metadata"]["uid"] != old

        wait_until(anew, what="the Service again", deadline_s=DEADLINE_S)

    def stages(self) -> dict[str, str]:
        """Name of each stage's Deployment, and its node."""
        return self._placed("!shoal.dev/standby")

    def standbys(self) -> dict[str, str]:
        """The same of those that stand by."""
        return self._placed("shoal.dev/standby")

    def _placed(self, which: str) -> dict[str, str]:
        found = {}
        for each in self.admin.list("apps/v1", "deployments", namespace=self.namespace, labels=which):
            if each["metadata"]["labels"].get("shoal.dev/role") == "stage":
                terms = each["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
                term = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
                found[each["metadata"]["name"]] = term["matchFields"][0]["values"][0]
        return found


@pytest.fixture
def cluster(admin: Api, namespace: str) -> Cluster:
    return Cluster(admin, namespace)


@pytest.fixture
def serving(start: Start, office: list[str], admin: Api, namespace: str, cluster: Cluster) -> Process:
    """An operator and a model that serves."""
    operator = start()
    admin.apply(example(), namespace=namespace)
    cluster.wait_for("Ready")
    return operator


def test_apply_of_the_example_serves(serving, cluster, admin, namespace, kubectl):
    assert len(cluster.stages()) >= 1
    kubectl("wait", "--for=condition=Ready", "smodel/llama-8b", "--namespace", namespace, "--timeout=30s")
    table = kubectl("get", "smodel", "--namespace", namespace)
    assert "READY" in table
    assert "Serving" in table
    log = serving.log.read_text()
    assert "ERROR" not in log
    assert "Traceback" not in log


def test_case_99_deleting_needs_no_operator_and_leaves_nothing(serving, cluster, admin, namespace):
    def left() -> list[str]:
        kinds = (
            ("apps/v1", "deployments"),
            ("v1", "services"),
            ("v1", "configmaps"),
            ("v1", "secrets"),
            ("batch/v1", "jobs"),
            ("v1", "persistentvolumeclaims"),
            ("networking.k8s.io/v1", "networkpolicies"),
            ("policy/v1", "poddisruptionbudgets"),
            ("rbac.authorization.k8s.io/v1", "roles"),
            ("rbac.authorization.k8s.io/v1", "rolebindings"),
            ("v1", "serviceaccounts"),
        )
        return [
            f"{resource}/{each['metadata']['name']}"
            for version, resource in kinds
            for each in admin.list(version, resource, namespace=namespace)
            if "shoal.dev/model" in each["metadata"].get("labels", {})
        ]

    serving.stop()
    assert len(left()) > 10
    assert not admin.get(*MODELS, "llama-8b", namespace=namespace)["metadata"].get("finalizers")
    admin.delete(*MODELS, "llama-8b", namespace=namespace)
    wait_until(lambda: not left(), what="an empty namespace", deadline_s=DEADLINE_S)


def written(audit: AuditLog, user: str, since: int) -> list[tuple[str, str, str]]:
    """What the operator wrote since the mark, and it wrote something."""
    writes = wait_until(lambda: audit.writes(user=user, since=since), what="a write", deadline_s=DEADLINE_S)
    return [(write.verb, write.what, write.name) for write in writes]


def test_case_103_idle_writes_nothing(serving, cluster, audit: AuditLog, chart_service_account, admin, namespace):
    cluster.replace_service()
    mark = audit.mark()
    # Each of these wakes the operator for the model, and changes nothing of it.
    for number in range(30):
        labels = {"app.kubernetes.io/managed-by": "shoal-operator", "shoal.dev/model": "llama-8b"}
        admin.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "noise", "labels": labels},
                "data": {"number": str(number)},
            },
            namespace=namespace,
        )
    cluster.replace_service()
    assert written(audit, chart_service_account.user, mark) == [("patch", "services", "llama-8b")]


def test_replicas_zero_and_back(serving, cluster, admin, namespace):
    admin.apply(example(replicas=0), namespace=namespace)
    cluster.wait_for("Ready", "False", "ScaledToZero")
    wait_until(lambda: not cluster.stages(), what="no stages", deadline_s=DEADLINE_S)
    admin.apply(example(), namespace=namespace)
    cluster.wait_for("Ready")
    assert cluster.stages()


def test_a_stage_that_is_killed_for_memory_says_so(serving, cluster, kubelet):
    def decide(pod: Manifest) -> PodFate:
        if pod["metadata"]["labels"].get("shoal.dev/stage") == "0":
            return OOM_KILLED
        return all_well(pod)

    kubelet.decide(decide)
    condition = cluster.wait_for("StagesReady", "False", "OOMKilled")
    assert "stage 0 on" in condition["message"]
    kubelet.decide(all_well)
    cluster.wait_for("Ready")


def pods_of(admin: Api, namespace: str, stage: str) -> list[str]:
    """The pods of a stage by their uid."""
    pods = admin.list("v1", "pods", namespace=namespace, labels=f"shoal.dev/name={stage}")
    return [each["metadata"]["uid"] for each in pods]


def test_a_standby_takes_over_at_once_and_is_not_started_anew(serving, admin, namespace, cluster, nodes):
    ((name, node),) = cluster.standbys().items()
    before = admin.get("apps/v1", "deployments", name, namespace=namespace)
    index = before["metadata"]["labels"]["shoal.dev/stage"]
    wait_until(
        lambda: admin.get(*MODELS, "llama-8b", namespace=namespace)["status"]["plan"]["standbys"][0]["ready"],
        what="a standby that is ready",
        deadline_s=DEADLINE_S,
    )
    pods = pods_of(admin, namespace, name)
    # replanAfterSeconds is 30: nobody waits for it.
    lost = next(where for title, where in cluster.stages().items() if f"-s{index}-" in title)
    nodes.lose(lost)
    wait_until(lambda: name in cluster.stages(), what="a standby that serves", deadline_s=DEADLINE_S)
    cluster.wait_for("Ready")
    after = admin.get("apps/v1", "deployments", name, namespace=namespace)
    assert after["spec"] == before["spec"]
    assert pods_of(admin, namespace, name) == pods
    assert cluster.stages()[name] == node
    plan = json.loads(admin.get("v1", "configmaps", "llama-8b-plan", namespace=namespace)["data"]["plan.json"])
    assert plan["pipelines"][0]["stages"][int(index)]["address"].startswith(f"{name}.")


def test_case_30_without_a_spare_node_the_rest_keeps_running_and_it_says_what_is_missing(
    start, office, admin, namespace, cluster, nodes
):
    start()
    small = {"placement": {"nodeLimits": [{"node": node, "memory": "1Gi"} for node in office[2:]]}}
    admin.apply(example(recovery={"replanAfterSeconds": 1}, stages={"count": 2}, **small), namespace=namespace)
    cluster.wait_for("Ready")
    before = cluster.stages()
    kept = next(name for name in before if "-s0-" in name)
    generation = admin.get("apps/v1", "deployments", kept, namespace=namespace)["metadata"]["generation"]
    nodes.lose(next(node for name, node in before.items() if "-s1-" in name))
    degraded = cluster.wait_for("Degraded", reason="NoSpareNode")
    assert "stage 1 of" in degraded["message"]
    assert "GiB" in degraded["message"]
    assert cluster.stages() == before
    assert admin.get("apps/v1", "deployments", kept, namespace=namespace)["metadata"]["generation"] == generation


def test_scale_adds_a_pipeline_and_takes_it_away(start, office, admin, namespace, cluster, kubectl):
    start()
    admin.apply(example(stages={"count": 2}, placement={}, scheduler={"streams": 1}), namespace=namespace)
    cluster.wait_for("Ready")
    first = cluster.stages()

    def replicas() -> int:
        return int(admin.get(*MODELS, "llama-8b", namespace=namespace)["status"]["readyReplicas"])

    kubectl("scale", "smodel/llama-8b", "--replicas=2", "--namespace", namespace)
    wait_until(lambda: replicas() == 2, what="two pipelines", deadline_s=DEADLINE_S)
    assert len(cluster.stages()) == 4
    assert first.items() < cluster.stages().items()
    kubectl("scale", "smodel/llama-8b", "--replicas=1", "--namespace", namespace)
    wait_until(lambda: cluster.stages() == first, what="the first pipeline alone", deadline_s=DEADLINE_S)


def test_case_48_a_new_operator_with_other_images_downloads_and_compiles_nothing_anew(
    start, office, admin, namespace, cluster, audit: AuditLog, chart_service_account
):
    """Models that name their images are not touched; the others change images, and their model stays where it is."""
    first = start()
    light = {"stages": {"count": 2}, "placement": {}, "scheduler": {"streams": 1}}
    pinned = {"image": {"stage": "registry.local/stage:1", "router": "registry.local/router:1"}}
    admin.apply(example("pinned", **light, **pinned), namespace=namespace)
    admin.apply(example("free", **light), namespace=namespace)
    cluster.wait_for("Ready", name="pinned")
    cluster.wait_for("Ready", name="free")
    claim = admin.get("v1", "persistentvolumeclaims", "free-store", namespace=namespace)["metadata"]["uid"]
    before = {name for name in cluster.stages() if name.startswith("free-")}
    first.stop()
    mark = audit.mark()
    start("operator-1", SHOAL_STAGE_IMAGE="registry.local/stage:2", SHOAL_ROUTER_IMAGE="registry.local/router:2")
    wait_until(lambda: not before & cluster.stages().keys(), what="stages with the new image", deadline_s=DEADLINE_S)
    cluster.wait_for("Ready", name="free")
    writes = written(audit, chart_service_account.user, mark)
    assert not [each for each in writes if each[2].startswith("pinned")]
    # A Job that is done may go; none is made.
    assert not [each for each in writes if each[1] in ("jobs", "persistentvolumeclaims") and each[0] != "delete"]
    assert admin.get("v1", "persistentvolumeclaims", "free-store", namespace=namespace)["metadata"]["uid"] == claim


def test_deleting_the_namespace_needs_no_operator(serving, admin, namespace):
    serving.kill()
    admin.delete("v1", "namespaces", namespace)
    wait_until(lambda: admin.find("v1", "namespaces", namespace) is None, what="its end", deadline_s=DEADLINE_S)


def test_case_29_a_lost_node_loses_its_stage_to_a_spare_one(start, office, admin, namespace, cluster, nodes):
    start()
    admin.apply(example(recovery={"replanAfterSeconds": 2}, stages={"count": 2}, placement={}), namespace=namespace)
    cluster.wait_for("Ready")
    before = cluster.stages()
    lost = next(node for name, node in before.items() if "-s1-" in name)
    nodes.lose(lost)
    moved = wait_until(
        lambda: now if len(now := cluster.stages()) == 2 and lost not in now.values() else None,
        what=f"a plan without {lost}",
        deadline_s=DEADLINE_S,
    )
    kept = next(name for name in before if "-s0-" in name)
    assert moved[kept] == before[kept]
    cluster.wait_for("Ready")
    assert cluster.condition("Degraded")["status"] == "False"


def test_case_95_two_operators_never_act_at_once(
    start, office, admin, namespace, cluster, audit: AuditLog, chart_service_account
):
    operators = {name: start(name) for name in ("operator-0", "operator-1")}
    admin.apply(example(), namespace=namespace)
    cluster.wait_for("Ready")
    names = sorted(cluster.stages())
    lease = admin.get("coordination.k8s.io/v1", "leases", "shoal-operator", namespace=namespace)
    leader = operators.pop(lease["spec"]["holderIdentity"])
    (waiting,) = operators.values()
    assert "applied Deployment" in leader.log.read_text()
    assert "applied" not in waiting.log.read_text()
    cluster.replace_service()
    mark = audit.mark()
    leader.kill()
    cluster.replace_service()
    wait_until(
        lambda: "applied Service" in waiting.log.read_text(),
        what="the other operator's word that it made the Service",
        deadline_s=DEADLINE_S,
    )
    # What the first one made is as the second one wants it.
    assert written(audit, chart_service_account.user, mark) == [("patch", "services", "llama-8b")]
    assert sorted(cluster.stages()) == names
