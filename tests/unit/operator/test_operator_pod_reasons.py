"""Reasons come from what pods really say."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_operator.cluster.kinds import POD
from shoal_operator.status.pods import LONGEST, is_started, trouble_of


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"name": "stage", "image": "img:1", "state": {"waiting": {"reason": reason, "message": message}}, **more}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


RUNNING = {"name": "stage", "ready": False, "state": {"running": {}}}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/5 nodes are available: 1 Insufficient memory.",
}

CASES = {
    "no pod yet": (None, "Starting", True, ""),
    "nothing said yet": (pod(phase="Pending"), "Starting", True, ""),
    "not placed": (pod(conditions=[UNSCHEDULABLE]), "Unschedulable", False, "Insufficient memory"),
    "image is missing": (
        pod(containerStatuses=[waiting("ErrImagePull", "not found")]),
        "ImagePullBackOff",
        False,
        "image img:1: not found",
    ),
    "secret is missing": (
        pod(containerStatuses=[waiting("CreateContainerConfigError", 'secret "x" not found')]),
        "CreateContainerConfigError",
        False,
        'secret "x" not found',
    ),
    "blocks are pulled": (pod(initContainerStatuses=[RUNNING]), "Pulling", True, "being pulled"),
    "pull failed": (
        pod(
            initContainerStatuses=[
                waiting("CrashLoopBackOff", lastState=ended(4, message="noise\nerror: blocks/x has another digest\n"))
            ]
        ),
        "IntegrityError",
        False,
        "error: blocks/x has another digest",
    ),
    "it loads": (pod(containerStatuses=[RUNNING]), "Loading", True, "loads its blocks"),
    "killed for memory": (
        pod(containerStatuses=[waiting("CrashLoopBackOff", lastState=ended(137, "OOMKilled"))]),
        "OOMKilled",
        False,
        "needed more memory than planned",
    ),
    "killed for memory and running again": (
        pod(containerStatuses=[RUNNING | {"lastState": ended(137, "OOMKilled")}]),
        "OOMKilled",
        False,
        "needed more memory",
    ),
    "case 61: no device": (
        pod(
            containerStatuses=[
                waiting("CrashLoopBackOff", lastState=ended(5, message="error: device GPU is not there"))
            ]
        ),
        "DeviceUnavailable",
        False,
        "device GPU is not there",
    ),
    "kubelet has no device": (
        pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed for gpu.intel.com/xe"),
        "DeviceUnavailable",
        False,
        "gpu.intel.com/xe",
    ),
    "evicted": (
        pod(phase="Failed", reason="Evicted", message="The node was low on memory."),
        "Evicted",
        False,
        "low on",
    ),
    "crash loop without a word": (
        pod(containerStatuses=[waiting("CrashLoopBackOff")]),
        "CrashLoopBackOff",
        False,
        "again and again",
    ),
    "case 33: started again and again": (
        pod(
            containerStatuses=[
                waiting("CrashLoopBackOff", restartCount=8, lastState=ended(6, message="error: the device hangs"))
            ]
        ),
        "RecoveryExhausted",
        False,
        "the device hangs; it was started anew 8 times: mend that",
    ),
    "case 33: not often enough to give up": (
        pod(
            containerStatuses=[
                waiting("CrashLoopBackOff", restartCount=7, lastState=ended(6, message="error: the device hangs"))
            ]
        ),
        "StageError",
        False,
        "the device hangs",
    ),
    "ended at once": (
        pod(containerStatuses=[{"name": "stage", "state": ended(1)}]),
        "Failed",
        False,
        "exit code 1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_pod_says(case):
    given, reason, is_waiting, words = CASES[case]
    found = trouble_of(given, "stage 0 on pc-01")
    assert found is not None
    assert (found.reason, found.waiting) == (reason, is_waiting)
    assert words in found.message
    assert found.message.startswith("stage 0 on pc-01")
    assert "\n" not in found.message


def test_a_pod_that_serves_is_in_no_trouble():
    assert trouble_of(pod(conditions=[{"type": "Ready", "status": "True"}]), "x") is None


def test_a_pod_that_ends_is_not_ready():
    ending = pod(conditions=[{"type": "Ready", "status": "True"}])
    ending["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    found = trouble_of(ending, "x")
    assert found is not None
    assert found.reason == "Terminating"


def test_long_messages_are_cut():
    found = trouble_of(pod(containerStatuses=[waiting("ErrImagePull", "x" * 5000)]), "stage")
    assert found is not None
    assert len(found.message) == LONGEST


def test_started_needs_every_container():
    started = {"state": {"running": {}}, "started": True}
    assert is_started(pod(containerStatuses=[started]))
    assert not is_started(pod(containerStatuses=[started, {"state": {"running": {}}, "started": False}]))
    assert not is_started(pod())


async def test_a_stage_that_was_killed_for_memory_says_what_its_limit_was(office):
    await office.settle()
    victim = next(
        each for each in office.cluster.of_kind(POD) if each["metadata"]["labels"].get("shoal.dev/role") == "stage"
    )
    (limit,) = [each["resources"]["limits"]["memory"] for each in victim["spec"]["containers"]]
    victim["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [waiting("CrashLoopBackOff", lastState=ended(137, "OOMKilled"))],
    }
    office.cluster.put(victim)
    await office.reconcile()
    said = office.condition("StagesReady")
    assert said["reason"] == "OOMKilled"
    assert f"limit of {int(limit) >> 20} MiB: lower scheduler.streams" in said["message"]
