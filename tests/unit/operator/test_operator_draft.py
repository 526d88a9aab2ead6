"""The draft model in a cluster: made known like the model, run beside the router, and never in anybody's way."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, JOB, Ref

SOURCE = {"draft": {"source": {"uri": "hf://org/draft"}, "precision": "INT8"}}
VOLUME = {"draft": {"volume": {"persistentVolumeClaim": {"claimName": "drafts"}, "path": "small"}}}


def ask(office: Any, speculative: dict[str, Any], **more: Any) -> None:
    office.apply(stages={"count": 2}, scheduler={"streams": 2, "maxContext": 2048, "speculative": speculative}, **more)


def router(office: Any) -> dict[str, Any]:
    pod: dict[str, Any] = office.cluster.objects[Ref(DEPLOYMENT, "ai", "llama-8b-router")]["spec"]["template"]["spec"]
    return pod


def fail_draft(office: Any) -> None:
    def unwell(pod: dict[str, Any]) -> dict[str, Any] | None:
        said = str(pod["spec"].get("initContainers", "")) + str(pod["spec"]["containers"])
        return {"phase": "Pending"} if "hf://org/draft" in said and "shoal_router" not in said else None

    office.workloads.unwell = unwell


@pytest.mark.parametrize("speculative", [SOURCE, VOLUME], ids=["source", "volume"])
async def test_it_runs_beside_the_router(office, speculative):
    ask(office, speculative)
    await office.settle(rounds=14)
    pod = router(office)
    server, draft = pod["containers"]
    assert "--draft-address=127.0.0.1:50061" in server["command"]
    assert draft["command"][3:4] == ["draft"]
    assert int(draft["resources"]["limits"]["memory"]) > 4 << 30
    mounted = {mount["name"] for each in (*pod["containers"], *pod["initContainers"]) for mount in each["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    names = [each["name"] for each in (*pod["containers"], *pod["initContainers"])]
    assert len(set(names)) == len(names)
    assert office.condition("Ready")["status"] == "True"
    assert office.condition("Progressing")["status"] == "False"
    assert "llama-8b-draft-facts" in office.names(CONFIG_MAP)


async def test_one_in_4_bits_keeps_its_numbers_which_the_gpu_s_model_does_not(office):
    ask(office, {"draft": {"source": {"uri": "hf://org/draft"}}}, model={"source": {"uri": "hf://org/model"}})
    await office.settle(rounds=14)
    commands = {
        kind: [
            container["command"]
            for job in office.cluster.of_kind(JOB)
            for container in job["spec"]["template"]["spec"].get("initContainers", [])
            + job["spec"]["template"]["spec"]["containers"]
            if f"hf://org/{kind}" in container.get("command", [])
        ]
        for kind in ("draft", "model")
    }
    assert commands["draft"]
    assert all("--keep-stored" in command for command in commands["draft"])
    assert commands["model"]
    assert not any("--keep-stored" in command for command in commands["model"])


async def test_a_router_that_has_not_started_waits_for_it(office):
    fail_draft(office)
    ask(office, SOURCE)
    await office.settle(rounds=14)
    assert "llama-8b-router" not in office.names(DEPLOYMENT)
    assert "the draft model is there" in office.condition("RouterReady")["message"]
    assert office.condition("Progressing")["message"].startswith("the draft model: ")
    office.workloads.unwell = lambda _: None
    await office.settle(rounds=14)
    office.workloads.step()
    await office.settle(rounds=14)
    assert office.condition("Ready")["status"] == "True"


async def test_a_router_that_runs_does_not(office):
    await office.settle()
    fail_draft(office)
    ask(office, SOURCE)
    await office.settle(rounds=14)
    assert office.condition("Ready")["status"] == "True"
    assert len(router(office)["containers"]) == 1


async def test_one_that_cannot_be_had_is_said_and_the_router_goes_on(office):
    ask(office, SOURCE)
    for _ in range(4):
        await office.reconcile()
        office.workloads.step()
        for job in office.cluster.of_kind(JOB):
            if "hf://org/draft" in str(job["spec"]):
                failed = {"conditions": [{"type": "Failed", "status": "True", "message": "no such repository"}]}
                office.cluster.put({**job, "status": failed})
                for pod in [each for each in office.cluster.objects.values() if each["kind"] == "Pod"]:
                    if pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]:
                        office.cluster.put({**pod, "status": {"phase": "Failed"}})
    await office.reconcile()
    degraded = office.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "DraftUnavailable")
    assert len(router(office)["containers"]) == 1


async def test_switched_off_there_is_none(office):
    ask(office, SOURCE | {"mode": "Off"})
    await office.settle()
    assert len(router(office)["containers"]) == 1
    assert "--speculative-mode=Off" in router(office)["containers"][0]["command"]
    assert not [job for job in office.cluster.of_kind(JOB) if "hf://org/draft" in str(job)]


async def test_a_draft_of_a_source_needs_a_store_also_where_the_model_is_on_a_volume(office):
    ask(office, SOURCE, model={"volume": {"hostPath": {"path": "/srv/model"}}})
    await office.settle(rounds=14)
    assert "llama-8b-store" in office.names(DEPLOYMENT)
    assert office.condition("Ready")["status"] == "True"


async def test_idle_it_writes_nothing(office):
    ask(office, SOURCE)
    await office.settle(rounds=14)
    before = len(office.cluster.writes)
    for _ in range(5):
        await office.reconcile()
    assert office.cluster.writes[before:] == []
