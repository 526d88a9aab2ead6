"""Cases from the field that belong to the operator's children."""

from __future__ import annotations

from typing import Any

from shoal.plan.estimate import compile_memory_estimate
from shoal_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, JOB, POD, Ref
from shoal_operator.settings import OperatorSettings


def pods_of(office: Any) -> list[dict[str, Any]]:
    """The pod templates of everything that makes pods."""
    made = [*office.cluster.of_kind(DEPLOYMENT), *office.cluster.of_kind(JOB)]
    return [obj["spec"]["template"]["spec"] for obj in made]


def of_stages(office: Any) -> list[dict[str, Any]]:
    made = office.cluster.of_kind(DEPLOYMENT)
    return [obj for obj in made if obj["metadata"]["labels"]["shoal.dev/role"] == "stage"]


async def test_case_107_pull_secrets_reach_every_pod(make_office, make_node, make_model):
    settings = OperatorSettings(image_pull_secrets=("operators",))
    office = make_office(make_node("pc-01", "28Gi"), settings=settings)
    office.cluster.put(make_model(image={"pullSecrets": [{"name": "users"}]}))
    await office.settle()
    roles = {obj["metadata"]["labels"]["shoal.dev/role"] for obj in office.cluster.of_kind(DEPLOYMENT)}
    assert roles == {"stage", "router", "store"}
    assert office.cluster.of_kind(JOB)
    for pod in pods_of(office):
        assert pod["imagePullSecrets"] == [{"name": "users"}, {"name": "operators"}]


async def test_case_111_a_stage_on_a_device_is_in_the_nodes_render_group(make_office, make_node, make_model):
    settings = OperatorSettings(supplemental_groups=(109,))
    office = make_office(make_node("pc-01", "28Gi"), settings=settings)
    office.cluster.put(make_model())
    await office.settle()
    (stage,) = of_stages(office)
    assert stage["spec"]["template"]["spec"]["securityContext"]["supplementalGroups"] == [109]
    office.cluster.put(make_model(devices=["CPU"]))
    await office.settle()
    for stage in of_stages(office):
        assert "supplementalGroups" not in stage["spec"]["template"]["spec"]["securityContext"]


async def test_case_112_the_plan_names_stages_by_dns(office):
    await office.settle()
    plan = office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"]
    for stage in of_stages(office):
        name = stage["metadata"]["name"]
        assert f'"address": "{name}.llama-8b-stages.ai.svc.cluster.local:50051"' in plan
        pod = stage["spec"]["template"]["spec"]
        assert (pod["hostname"], pod["subdomain"]) == (name, "llama-8b-stages")


async def test_case_94_another_image_needs_no_spare_node(make_office, make_node, make_model):
    office = make_office(make_node("pc-01", "28Gi"))
    office.cluster.put(make_model())
    await office.settle()
    before = office.stages()
    office.workloads.unwell = lambda pod: (
        {
            "phase": "Pending",
            "containerStatuses": [{"name": "stage", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
        }
        if pod["metadata"]["labels"]["shoal.dev/role"] == "stage"
        and pod["spec"]["containers"][0]["image"] == "absent:1"
        else None
    )
    office.cluster.put(make_model(image={"stage": "absent:1"}))
    await office.settle()
    assert office.stages() == before
    assert len(of_stages(office)) == 1
    assert office.condition("StagesReady")["reason"] == "ImagePullBackOff"
    # A revision that is stuck can be replaced.
    office.cluster.put(make_model(image={"stage": "stage:3"}))
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
    assert len(of_stages(office)) == 1


async def test_case_7_the_same_stage_elsewhere_is_one_stage(office):
    await office.settle()
    indexes = sorted(stage["metadata"]["labels"]["shoal.dev/stage"] for stage in of_stages(office))
    assert indexes == ["0", "1"]
    (pod, *_) = [pod for pod in office.cluster.of_kind(POD) if pod["metadata"]["labels"].get("shoal.dev/stage") == "0"]
    # The pod goes; whatever address the next one has, the plan names it as before.
    plan = office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]
    office.cluster.remove(Ref(POD, "ai", pod["metadata"]["name"]))
    await office.settle()
    assert office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"] == plan
    assert office.condition("Ready")["status"] == "True"


async def test_case_45_the_compile_job_asks_for_its_memory(office):
    """What the planner estimates from the source's sizes, which a small Job reads first."""
    await office.reconcile()
    (first,) = office.cluster.of_kind(JOB)
    (reader,) = first["spec"]["template"]["spec"]["containers"]
    assert "sizes" in reader["command"]
    assert reader["resources"]["limits"]["memory"] == "1Gi"
    office.workloads.step()
    await office.reconcile()
    job = next(job for job in office.cluster.of_kind(JOB) if "-model-" in job["metadata"]["name"])
    (compiler,) = job["spec"]["template"]["spec"]["initContainers"]
    estimate = compile_memory_estimate(office.facts)
    assert compiler["resources"]["requests"]["memory"] == str(estimate)
    assert compiler["resources"]["limits"]["memory"] == str(2 * estimate)


async def test_case_45_the_memory_of_the_settings_counts_before_the_estimate(make_office, make_node):
    office = make_office(make_node("pc-01", "28Gi"), settings=OperatorSettings(compile_memory="9Gi"))
    office.apply()
    await office.reconcile()
    office.workloads.step()
    await office.reconcile()
    job = next(job for job in office.cluster.of_kind(JOB) if "-model-" in job["metadata"]["name"])
    (compiler,) = job["spec"]["template"]["spec"]["initContainers"]
    assert compiler["resources"]["requests"]["memory"] == compiler["resources"]["limits"]["memory"] == "9Gi"


async def test_case_36_the_limit_is_the_planned_peak(office):
    await office.settle()
    status = office.model()["status"]["plan"]["pipelines"][0]["stages"]
    planned = {str(stage["memoryBytes"]) for stage in status}
    limits = {
        stage["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
        for stage in of_stages(office)
    }
    assert limits == planned


async def test_case_34_nothing_that_a_pod_does_lasts_for_ever(office):
    """gpustack#1850 and others: instances stuck in a state. Here loading, compiling and leaving have their ends, and
    what is not ready in time starts anew until it says RecoveryExhausted."""
    await office.reconcile()
    jobs = office.cluster.of_kind(JOB)
    assert jobs
    office.workloads.step()
    await office.settle()
    jobs += office.cluster.of_kind(JOB)
    for job in jobs:
        assert 0 < job["spec"]["activeDeadlineSeconds"] <= 24 * 3600
        assert 0 <= job["spec"]["backoffLimit"] <= 6
    deployments = office.cluster.of_kind(DEPLOYMENT)
    assert {obj["metadata"]["labels"]["shoal.dev/role"] for obj in deployments} == {"stage", "router", "store"}
    for obj in deployments:
        pod = obj["spec"]["template"]["spec"]
        assert pod.get("terminationGracePeriodSeconds", 30) <= 60
        for container in pod["containers"]:
            assert {"startupProbe", "livenessProbe"} & container.keys(), (obj["metadata"]["name"], container["name"])
            start = container.get("startupProbe", container.get("livenessProbe"))
            assert start["periodSeconds"] * start.get("failureThreshold", 3) < 3600


async def test_pods_mount_only_what_their_program_reads(office):
    await office.settle()
    found = {}
    for obj in office.cluster.of_kind(DEPLOYMENT):
        pod = obj["spec"]["template"]["spec"]
        names = {volume["name"] for volume in pod["volumes"]}
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        assert {mount["name"] for each in containers for mount in each["volumeMounts"]} == names
        found[obj["metadata"]["labels"]["shoal.dev/role"]] = names
    assert found == {
        "stage": {"tmp", "models", "cache", "tls"},
        "router": {"tmp", "models", "plan", "tls"},
        "store": {"tmp", "store"},
    }


async def test_nothing_runs_as_root_but_what_hands_the_cache_over(office):
    await office.settle()
    for pod in pods_of(office):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            if container["name"] != "cache-owner":
                assert "runAsUser" not in context
            assert set(container["resources"]) == {"requests", "limits"}
            assert "memory" in container["resources"]["limits"]


async def test_no_pod_gets_a_token(office):
    await office.settle()
    for obj in [*office.cluster.of_kind(DEPLOYMENT), *office.cluster.of_kind(JOB)]:
        assert obj["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def local_volume(node: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A claim, and the volume on one node's disk that it is bound to."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "namespace": "ai"},
        "spec": {"volumeName": "pv-1"},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv-1"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}},
    }
    return claim, volume


async def test_case_109_a_stage_goes_where_the_models_volume_is(make_office, make_node, make_model):
    nodes = [make_node(name, "28Gi") for name in ("pc-01", "pc-02", "pc-03")]
    for node in nodes:
        node["metadata"]["labels"]["kubernetes.io/hostname"] = node["metadata"]["name"]
    office = make_office(*nodes, *local_volume("pc-02"))
    volume = {"persistentVolumeClaim": {"claimName": "models"}}
    office.cluster.put(make_model(model={"volume": volume}, stages={"count": 1}))
    await office.settle()
    assert [node for _, node, _ in office.stages()] == ["pc-02"]
    office.cluster.put(make_model(model={"volume": volume}, stages={"count": 2}))
    await office.settle()
    planned = office.condition("Planned")
    assert planned["status"] == "False"
    assert "pc-01 cannot mount the model's volume" in planned["message"]


async def test_names_stay_within_what_dns_allows(make_office, make_node, make_model):
    name = "m" * 48
    office = make_office(make_node("pc-01", "28Gi"))
    office.cluster.put(make_model(name))
    await office.settle(name)
    for ref in office.cluster.objects:
        if ref.namespace == "ai" and ref.kind.kind in ("Service", "Deployment", "Job"):
            assert len(ref.name) <= 63, ref
