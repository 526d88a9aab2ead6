"""One reconcile for every cause, on a FakeCluster: what exists afterwards, and that nothing is written twice."""

from __future__ import annotations

import datetime

import pytest

from shoal_operator.cluster.kinds import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    SECRET,
    SERVICE,
    SHARDED_MODEL,
    Ref,
)
from shoal_operator.errors import NameTaken


async def test_first_the_model_is_compiled(office):
    await office.reconcile()
    assert len(office.names(JOB)) == 1
    assert office.names(CLAIM) == ["llama-8b-store"]
    assert office.names(DEPLOYMENT) == []
    assert office.condition("ModelAvailable")["reason"] == "Compiling"
    assert office.condition("Planned")["status"] == "Unknown"
    assert office.condition("Ready")["status"] == "False"


async def test_then_stages_and_router_come_and_it_is_ready(office):
    await office.settle()
    assert len(office.stages()) == 2
    assert "llama-8b-router" in office.names(DEPLOYMENT)
    assert {"llama-8b", "llama-8b-stages", "llama-8b-store"} == set(office.names(SERVICE))
    assert {"llama-8b-ca", "llama-8b-stage-tls", "llama-8b-router-tls"} == set(office.names(SECRET))
    status = office.model()["status"]
    assert office.condition("Ready") | {"lastTransitionTime": ""} == {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "the API answers",
        "observedGeneration": 1,
        "lastTransitionTime": "",
    }
    assert (status["stages"], status["readyReplicas"], status["replicas"]) == ("2/2", 1, 1)
    assert status["url"] == "http://llama-8b.ai.svc.cluster.local:8000/v1"
    assert office.condition("Degraded")["status"] == "False"


async def test_case_103_a_settled_model_is_never_written_again(office):
    await office.settle()
    before = len(office.cluster.writes)
    for minutes in range(20):
        office.now += datetime.timedelta(minutes=minutes)
        await office.reconcile()
    assert office.cluster.writes[before:] == []


async def test_case_48_a_new_operator_writes_nothing_and_compiles_nothing(office):
    await office.settle()
    before = len(office.cluster.writes)
    office.new_operator()
    await office.reconcile()
    assert office.cluster.writes[before:] == []


async def test_case_99_deleting_the_model_leaves_nothing_and_needs_no_operator(office):
    await office.settle()
    assert all(not obj["metadata"].get("finalizers") for obj in office.cluster.objects.values())
    office.cluster.remove(Ref(SHARDED_MODEL, "ai", "llama-8b"))
    left = [ref for ref in office.cluster.objects if ref.namespace == "ai" and ref.kind != EVENT]
    assert left == []


async def test_what_somebody_deletes_comes_back(office):
    await office.settle()
    office.cluster.remove(Ref(SERVICE, "ai", "llama-8b"))
    office.cluster.remove(Ref(CONFIG_MAP, "ai", "llama-8b-plan"))
    before = office.stages()
    await office.settle()
    assert "llama-8b" in office.names(SERVICE)
    assert "llama-8b-plan" in office.names(CONFIG_MAP)
    assert office.stages() == before


async def test_what_somebody_changes_is_put_right(office):
    await office.settle()
    ref = Ref(CONFIG_MAP, "ai", "llama-8b-plan")
    right = office.cluster.objects[ref]["data"]
    office.cluster.put({**office.cluster.objects[ref], "data": {"plan.json": "{}"}})
    router = Ref(DEPLOYMENT, "ai", "llama-8b-router")
    scaled = office.cluster.objects[router]
    office.cluster.put({**scaled, "spec": {**scaled["spec"], "replicas": 7}})
    await office.settle()
    assert office.cluster.objects[router]["spec"]["replicas"] == 1
    assert office.cluster.objects[ref]["data"].keys() == right.keys()
    assert '"pipelines"' in office.cluster.objects[ref]["data"]["plan.json"]


async def test_another_source_is_compiled_while_the_last_model_serves(office):
    await office.settle()
    stages = office.stages()
    office.workloads.unwell = lambda pod: (
        {"phase": "Pending"} if pod["metadata"]["ownerReferences"][0]["kind"] == "Job" else None
    )
    office.apply(stages={"count": 2}, model={"source": {"uri": "hf://another/model"}})
    await office.settle()
    assert office.stages() == stages
    assert office.condition("ModelAvailable")["reason"] == "PreviousModel"
    assert office.condition("Progressing")["status"] == "True"
    assert office.condition("Ready")["status"] == "True"


async def test_what_would_not_fit_is_said_before_it_is_compiled(make_office, make_node):
    office = make_office(make_node("pc-01", "4Gi"))
    office.apply(stages={"count": 2})
    await office.settle()
    condition = office.condition("Planned")
    assert (condition["status"], condition["reason"]) == ("False", "DoesNotFit")
    assert "need 2 nodes, 1 can be used" in condition["message"]
    assert not [name for name in office.names(JOB) if "-model-" in name]
    office.cluster.put(make_node("pc-02", "28Gi"))
    office.cluster.put(make_node("pc-03", "28Gi"))
    await office.settle()
    assert office.condition("Ready")["status"] == "True"


async def test_compiling_says_how_far_it_is(office):
    def compiles(pod):
        running = {"name": "compile", "ready": False, "state": {"running": {}}}
        return {"phase": "Pending", "initContainerStatuses": [running]}

    await office.reconcile()
    assert "hf://unsloth/" in office.condition("ModelAvailable")["message"]
    office.workloads.step()
    office.workloads.unwell = lambda pod: compiles(pod) if "-model-" in pod["metadata"]["name"] else None
    await office.reconcile()
    office.workloads.step()
    (pod,) = [name for name in office.names(POD) if "-model-" in name]
    office.cluster.logs[pod, "compile"] = "compiling: layer-012, 40 % of 4321 MB"
    outcome = await office.reconcile()
    assert outcome.look_again == 20
    for kind in ("ModelAvailable", "Progressing", "Ready"):
        assert office.condition(kind)["reason"] == "Compiling"
        assert "layer-012, 40 %" in office.condition(kind)["message"]


async def test_replicas_zero_stops_serving_and_keeps_the_model(office):
    await office.settle()
    jobs = office.names(JOB)
    office.apply(stages={"count": 2}, replicas=0)
    await office.settle()
    assert office.names(DEPLOYMENT) == ["llama-8b-store"]
    assert office.names(CLAIM) == ["llama-8b-store"]
    assert office.condition("Ready")["reason"] == "ScaledToZero"
    assert office.model()["status"]["replicas"] == 0
    office.apply(stages={"count": 2}, replicas=1)
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
    assert office.names(JOB) == jobs


async def test_a_volume_needs_no_store(office):
    office.apply(stages={"count": 2}, model={"volume": {"hostPath": {"path": "/srv/models/llama"}}})
    await office.settle()
    assert office.names(CLAIM) == []
    assert "llama-8b-store" not in office.names(SERVICE)
    assert office.condition("Ready")["status"] == "True"
    (deployment, *_) = [obj for obj in office.cluster.of_kind(DEPLOYMENT) if "-s0-" in obj["metadata"]["name"]]
    pod = deployment["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["initContainers"]] == ["doctor"], "nothing is pulled"
    assert {"name": "models", "hostPath": {"path": "/srv/models/llama", "type": "Directory"}} in pod["volumes"]


async def test_an_object_of_somebody_else_is_not_taken_over(office):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llama-8b", "namespace": "ai"},
        "spec": {"ports": [{"port": 1}]},
    }
    office.cluster.put(service)
    office.refresh()
    with pytest.raises(NameTaken, match="Service ai/llama-8b exists and belongs to somebody else"):
        await office.reconciler.reconcile(("ai", "llama-8b"))
    assert office.cluster.objects[Ref(SERVICE, "ai", "llama-8b")]["spec"] == {"ports": [{"port": 1}]}
    assert office.condition("Degraded")["reason"] == "NameTaken"
    assert office.condition("Ready")["status"] == "False"


async def test_events_tell_decisions_once(office):
    await office.settle()
    said = [(event["reason"], event["type"]) for event in office.cluster.of_kind(EVENT)]
    assert ("Serving", "Normal") in said
    assert len(said) == len(set(said))
    assert not [each for each in said if each[1] == "Warning"]


async def test_a_router_that_waits_for_its_keys_says_which_secret_it_needs(office):
    office.workloads.unwell = lambda pod: (
        {
            "phase": "Pending",
            "containerStatuses": [{"name": "router", "state": {"waiting": {"reason": "ContainerCreating"}}}],
        }
        if pod["metadata"]["labels"]["shoal.dev/role"] == "router"
        else None
    )
    office.apply(stages={"count": 2}, router={"apiKeysSecretRef": {"name": "llm-keys"}})
    await office.settle()
    condition = office.condition("RouterReady")
    assert condition["reason"] == "Starting"
    assert "it needs Secret llm-keys with entry api-keys (spec.router.apiKeysSecretRef)" in condition["message"]
