"""Plays the kubelets of all Node objects: scheduled pods start, Jobs' pods succeed, deleted pods go.

Without it a pod on a made Node stays Pending, and one that is deleted stays Terminating, for ever. What becomes of a
pod is decided by a function of the pod, so that a test can have one stage killed for memory and another one whose
image does not exist. Pods on nodes that are not Ready are left alone: nobody reports for a PC that is switched off.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import httpx

from testcluster.api import Manifest, Refused
from testcluster.background import ROUND_S, Background
from testcluster.kubeconfig import Kubeconfig


@dataclass(frozen=True, slots=True)
class PodFate:
    """What a kubelet reports of a pod."""

    phase: str = "Running"
    ready: bool = True
    waiting: str = ""
    """Reason for which containers wait, such as ImagePullBackOff."""
    last_termination: str = ""
    """Reason for which containers were ended the last time, such as OOMKilled."""
    exit_code: int = 0
    restarts: int = 0
    message: str = ""


RUNNING: Final = PodFate()
STARTING: Final = PodFate(ready=False)
SUCCEEDED: Final = PodFate(phase="Succeeded", ready=False)
OOM_KILLED: Final = PodFate(
    ready=False, waiting="CrashLoopBackOff", last_termination="OOMKilled", exit_code=137, restarts=3
)
IMAGE_PULL_BACK_OFF: Final = PodFate(
    phase="Pending", ready=False, waiting="ImagePullBackOff", message='Back-off pulling image "registry/absent:1"'
)

Decide = Callable[[Manifest], PodFate]


def everything_works(pod: Manifest) -> PodFate:
    """Pods of Jobs succeed, every other pod becomes ready."""
    owners = {owner["kind"] for owner in pod["metadata"].get("ownerReferences", [])}
    return SUCCEEDED if "Job" in owners else RUNNING


class Kubelet(Background):
    """Reports for every pod on a Ready node, while used as a context manager."""

    def __init__(self, kubeconfig: Kubeconfig, decide: Decide = everything_works) -> None:
        super().__init__(kubeconfig)
        self._decide = decide

    def decide(self, decide: Decide) -> None:
        """Decide otherwise from now on; pods that already run are looked at again."""
        self._decide = decide

    def round(self) -> None:
        """Report for the pods of the nodes that are Ready now."""
        ready = {node["metadata"]["name"] for node in self.api.list("v1", "nodes") if _is_ready(node)}
        for _, pod in self.api.watch("v1", "pods", deadline_s=ROUND_S):
            if self.stopping:
                return
            if pod.get("spec", {}).get("nodeName") in ready:
                self._report(pod)

    def _report(self, pod: Manifest) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if pod["metadata"].get("deletionTimestamp"):
            self.api.delete("v1", "pods", name, namespace=namespace, grace_s=0)
            return
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        wanted = pod_status(pod, self._decide(pod))
        if not _says_already(pod["status"], wanted):
            try:
                self.api.patch("v1", "pods/status", name, {"status": wanted}, namespace=namespace)
            except Refused as refusal:
                # The pod went, or changed, since the event: the next round sees it as it is.
                if refusal.code not in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT):
                    raise


def pod_status(pod: Manifest, fate: PodFate) -> Manifest:
    """The status that a kubelet would write for the pod."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = "True" if fate.ready else "False"
    address = _address(pod["metadata"]["uid"])
    status: Manifest = {
        "phase": fate.phase,
        "startTime": pod["status"].get("startTime", now),
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            {"type": kind, "status": value, "lastTransitionTime": now}
            for kind, value in (
                ("PodScheduled", "True"),
                ("Initialized", "True"),
                ("ContainersReady", ready),
                ("Ready", ready),
            )
        ],
        "containerStatuses": [_container(each, fate, now) for each in pod["spec"]["containers"]],
    }
    done = PodFate(phase="Succeeded", ready=True)
    status["initContainerStatuses"] = [_container(each, done, now) for each in pod["spec"].get("initContainers", [])]
    return status


def _is_ready(node: Manifest) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _container(container: Manifest, fate: PodFate, now: str) -> Manifest:
    ended = {"exitCode": fate.exit_code, "reason": fate.last_termination, "startedAt": now, "finishedAt": now}
    state: dict[str, Any]
    if fate.waiting:
        state = {"waiting": {"reason": fate.waiting, "message": fate.message}}
    elif fate.phase in ("Succeeded", "Failed"):
        reason = "Completed" if fate.phase == "Succeeded" else "Error"
        terminated = {"exitCode": fate.exit_code, "reason": reason, "startedAt": now, "finishedAt": now}
        state = {"terminated": terminated | ({"message": fate.message} if fate.message else {})}
    else:
        state = {"running": {"startedAt": now}}
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": fate.ready,
        "started": fate.ready,
        "restartCount": fate.restarts,
        "state": state,
        "lastState": {"terminated": ended} if fate.last_termination else {},
    }


def _says_already(status: Manifest, wanted: Manifest) -> bool:
    """Whether the pod's status says what is wanted, times aside: a kubelet writes changes only."""

    def essence(of: Manifest) -> tuple[Any, ...]:
        ready = [each["status"] for each in of.get("conditions", []) if each["type"] == "Ready"]
        containers = [
            (
                each["name"],
                each["ready"],
                each["restartCount"],
                sorted((kind, details.get("reason", "")) for kind, details in each.get("state", {}).items()),
                each.get("lastState", {}).get("terminated", {}).get("reason", ""),
            )
            for each in of.get("containerStatuses", [])
        ]
        return of.get("phase"), ready, sorted(containers)

    return essence(status) == essence(wanted)


def _address(uid: str) -> str:
    """An address of its own for each pod; nobody answers there."""
    number = zlib.crc32(uid.encode()) % (254 * 254)
    return f"10.244.{number // 254}.{number % 254 + 1}"
