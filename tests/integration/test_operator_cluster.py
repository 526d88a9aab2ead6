"""The operator on a real API server, as the chart's ServiceAccount: what it makes, and how it ends."""

from __future__ import annotations

import json

import httpx
import pytest

from testcluster.api import Api, Manifest
from testcluster.audit import AuditLog
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubelet import OOM_KILLED, PodFate
from testcluster.operating import DEADLINE_S, MODELS, all_well, example, written
from testcluster.processes import wait_until
from testcluster.relay import Relay


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
    assert serving.popen.returncode == 0, "its pod would be called Error instead of Completed"
    assert len(left()) > 10
    assert not admin.get(*MODELS, "llama-8b", namespace=namespace)["metadata"].get("finalizers")
    admin.delete(*MODELS, "llama-8b", namespace=namespace)
    wait_until(lambda: not left(), what="an empty namespace", deadline_s=DEADLINE_S)


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
    start_operator, five_pcs, admin, namespace, cluster, nodes
):
    start_operator()
    small = {"placement": {"nodeLimits": [{"node": node, "memory": "1Gi"} for node in five_pcs[2:]]}}
    admin.apply(example(recovery={"replanAfterSeconds": 1}, stages={"count": 2}, **small), namespace=namespace)
    cluster.wait_for("Ready")
    before = cluster.stages()
    kept = next(name for name in before if "-s0-" in name)
    generation = admin.get("apps/v1", "deployments", kept, namespace=namespace)["metadata"]["generation"]
    lost = next(node for name, node in before.items() if "-s1-" in name)
    nodes.lose(lost)
    degraded = cluster.wait_for("Degraded", reason="NoSpareNode")
    assert "stage 1 of" in degraded["message"]
    assert "GiB" in degraded["message"]
    assert cluster.stages() == before
    assert admin.get("apps/v1", "deployments", kept, namespace=namespace)["metadata"]["generation"] == generation
    # The policy frees the other stage's PC, and with it the claim on its memory.
    admin.patch(*MODELS, "llama-8b", {"spec": {"recovery": {"freeAfterSeconds": 1}}}, namespace=namespace)
    wait_until(lambda: not cluster.stages(), what="stages that give their PCs back", deadline_s=DEADLINE_S)
    cluster.wait_for("Degraded", reason="DoesNotFit")
    assert admin.find("v1", "configmaps", "llama-8b-plan", namespace=namespace) is None
    nodes.set_ready(lost, "True")
    cluster.wait_for("Ready")
    assert set(cluster.stages().values()) == set(before.values())


def test_scale_adds_a_pipeline_and_takes_it_away(start_operator, five_pcs, admin, namespace, cluster, kubectl):
    start_operator()
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
    start_operator, five_pcs, admin, namespace, cluster, audit: AuditLog, chart_service_account
):
    """Models that name their images are not touched; the others change images, and their model stays where it is."""
    first = start_operator()
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
    start_operator(
        "operator-1", SHOAL_STAGE_IMAGE="registry.local/stage:2", SHOAL_ROUTER_IMAGE="registry.local/router:2"
    )
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


def test_case_29_a_lost_node_loses_its_stage_to_a_spare_one(start_operator, five_pcs, admin, namespace, cluster, nodes):
    start_operator()
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
    start_operator, five_pcs, admin, namespace, cluster, audit: AuditLog, chart_service_account
):
    operators = {name: start_operator(name) for name in ("operator-0", "operator-1")}
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


def test_case_91_case_101_what_happens_while_no_watch_hears_anything_is_made_up_for(
    start_operator, five_pcs, admin, namespace, cluster, chart_service_account: Kubeconfig, tmp_path
):
    """The road to the API server is cut; meanwhile children and the spec change."""
    server = httpx.URL(chart_service_account.server)
    with Relay(server.host, server.port) as relay:
        kubeconfig = Kubeconfig.write(
            tmp_path / "relayed",
            server=f"https://127.0.0.1:{relay.port}",
            authority=chart_service_account.authority,
            user=chart_service_account.user,
            token=chart_service_account.token,
        )
        # The Lease is long: an operator that could not renew it would start afresh, which is another way to see all.
        operator = start_operator(kubeconfig=kubeconfig, SHOAL_LEASE_SECONDS="60")
        admin.apply(example(), namespace=namespace)
        cluster.wait_for("Ready")
        relay.cut()
        service = admin.get("v1", "services", "llama-8b", namespace=namespace)["metadata"]["uid"]
        admin.delete("v1", "services", "llama-8b", namespace=namespace)
        admin.patch(*MODELS, "llama-8b", {"spec": {"scheduler": {"maxQueue": 7}}}, namespace=namespace)
        wait_until(lambda: relay.refused, what="an operator that misses its watches", deadline_s=DEADLINE_S)
        assert admin.find("v1", "services", "llama-8b", namespace=namespace) is None
        relay.mend()

        def made_up_for() -> bool:
            again = admin.find("v1", "services", "llama-8b", namespace=namespace)
            router = admin.get("apps/v1", "deployments", "llama-8b-router", namespace=namespace)
            (container,) = router["spec"]["template"]["spec"]["containers"]
            return again is not None and again["metadata"]["uid"] != service and "--max-queue=7" in container["command"]

        wait_until(made_up_for, what="the Service again, and the new setting", deadline_s=DEADLINE_S)
        operator.check_running()


def test_an_operator_that_leads_no_more_ends_with_an_error(start_operator, crd, admin, namespace):
    """Its pod is started afresh, which a pod that ended well would not say the reason of."""
    operator = start_operator()
    lease = ("coordination.k8s.io/v1", "leases", "shoal-operator")

    def holder() -> str:
        found = admin.find(*lease, namespace=namespace)
        return "" if found is None else str(found["spec"].get("holderIdentity"))

    wait_until(lambda: holder() == "operator-0", what="a leader", deadline_s=DEADLINE_S)
    taken = {"holderIdentity": "somebody-else", "leaseDurationSeconds": 3600}
    admin.patch(*lease, {"spec": taken}, namespace=namespace)
    assert operator.popen.wait(timeout=DEADLINE_S) == 1
    assert "leads no more" in operator.log.read_text()


NODES_FILE = """\
nodes:
  - {name: pc-1, devices: [GPU, CPU], memory: {total: 28Gi, free: 28Gi}}
  - {name: pc-2, devices: [GPU, CPU], memory: {total: 14Gi, free: 14Gi}}
"""


@pytest.mark.chart_values(mode="Namespaced", nodes=[{"name": "pc-1", "memory": {"total": "28Gi", "free": "28Gi"}}])
def test_case_106_an_operator_with_rights_in_its_namespace_alone_serves(
    start_operator, five_pcs, admin, namespace, cluster, tmp_path
):
    """It may read neither Node objects nor volumes nor CRDs; PCs come from a file, and need no label there."""
    file = tmp_path / "nodes.yaml"
    file.write_text(NODES_FILE)
    operator = start_operator(SHOAL_NODES_FILE=str(file))
    admin.apply(example(stages={"count": 2}, placement={}), namespace=namespace)
    cluster.wait_for("Ready")
    assert set(cluster.stages().values()) == {"pc-1", "pc-2"}
    log = operator.log.read_text()
    assert "ERROR" not in log
    assert "forbidden" not in log


def test_a_stage_leaves_a_pc_in_use_and_comes_back_when_its_new_one_is(
    start_operator, five_pcs, admin, namespace, cluster, nodes
):
    """It is loaded on the other PC before it leaves, so that both serve for a moment and none is missing."""
    start_operator()
    manners = {"sparePods": 0, "whenInUse": "Yield"}
    admin.apply(example(stages={"count": 2}, placement=manners), namespace=namespace)
    cluster.wait_for("Ready")
    before = cluster.stages()
    node = before[sorted(before)[1]]
    others = [pc for pc in five_pcs if pc not in before.values()]
    for pc in others[1:]:
        nodes.use(pc, "BusyWithOthers")
    nodes.use(node, "UserActive")

    def moved_to(pc: str) -> bool:
        now = cluster.stages()
        assert len(now) >= 2
        return len(now) == 2 and pc in now.values() and not cluster.standbys()

    wait_until(lambda: moved_to(others[0]), what=f"the stage on {others[0]}", deadline_s=DEADLINE_S)
    cluster.wait_for("Ready")
    assert cluster.condition("Degraded")["status"] == "False"
    nodes.use(node, "NotInUse")
    nodes.use(others[0], "UserActive")
    wait_until(lambda: moved_to(node), what=f"the stage back on {node}", deadline_s=DEADLINE_S)
    assert cluster.stages() == before
    cluster.wait_for("Ready")
    # Nowhere to go: it stays, and says so.
    nodes.use(others[0], "UserActive")
    nodes.use(node, "UserActive")
    degraded = cluster.wait_for("Degraded", reason="NodeInUse")
    assert f"stays on {node}" in degraded["message"]
    assert cluster.stages() == before
