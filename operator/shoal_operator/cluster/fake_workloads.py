"""Plays the controllers and kubelets around a FakeCluster: Deployments and Jobs get pods, and pods get a life.

One `step` brings every workload as far as it can come. `unwell` says what happens to a pod instead of success.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal_operator.cluster.fake import FakeCluster
from shoal_operator.cluster.kinds import DEPLOYMENT, JOB, NODE, POD, Object, Ref, ref_of

STARTED: Final = "2026-01-01T00:00:10Z"
Unwell = Callable[[Object], Mapping[str, Any] | None]


class FakeWorkloads:
    """Makes pods of Deployments and Jobs. `report` is what the last container of a Job says when it succeeds."""

    def __init__(self, cluster: FakeCluster, report: str = "") -> None:
        self._cluster = cluster
        self.report = report
        self.unwell: Unwell = lambda _: None

    def step(self) -> None:
        """Pods for workloads that have none, then a status for every pod and Job."""
        for workload in (*self._cluster.of_kind(DEPLOYMENT), *self._cluster.of_kind(JOB)):
            pods = [pod for pod in self._cluster.of_kind(POD) if _owned_by(pod, workload)]
            fresh = _pod_of(workload)
            if pods and workload["kind"] == DEPLOYMENT.kind and pods[0]["spec"] != fresh["spec"]:
                self._cluster.remove(ref_of(pods.pop()))
            if not pods:
                self._cluster.put(fresh)
        for pod in self._cluster.of_kind(POD):
            status = self.unwell(pod) or self._success(pod)
            if status != pod.get("status"):
                self._cluster.put({**pod, "status": status})
        for deployment in self._cluster.of_kind(DEPLOYMENT):
            status = {"observedGeneration": deployment["metadata"]["generation"], "updatedReplicas": 1}
            if deployment.get("status") != status:
                self._cluster.put({**deployment, "status": status})
        for job in self._cluster.of_kind(JOB):
            pods = [pod for pod in self._cluster.of_kind(POD) if _owned_by(pod, job)]
            if pods and pods[0]["status"].get("phase") == "Succeeded" and "status" not in job:
                self._cluster.put({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})

    def lose(self, node: str, since: datetime.datetime) -> None:
        """The node's kubelet falls silent."""
        self._condition(node, "Unknown", since)

    def bring_back(self, node: str, since: datetime.datetime) -> None:
        """It is heard again."""
        self._condition(node, "True", since)

    def _condition(self, node: str, status: str, since: datetime.datetime) -> None:
        obj = self._cluster.objects[Ref(NODE, "", node)]
        ready = {"type": "Ready", "status": status, "lastTransitionTime": since.isoformat().replace("+00:00", "Z")}
        self._cluster.put({**obj, "status": {**obj["status"], "conditions": [ready]}})

    def _success(self, pod: Object) -> dict[str, Any]:
        owner = pod["metadata"]["ownerReferences"][0]["kind"]
        containers = pod["spec"]["containers"]
        if owner == "Job":
            ended = {"terminated": {"exitCode": 0, "reason": "Completed", "message": self.report}}
            statuses = [{"name": each["name"], "ready": False, "state": ended} for each in containers]
            return {"phase": "Succeeded", "containerStatuses": statuses}
        running = {"running": {"startedAt": STARTED}}
        return {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": each["name"], "ready": True, "started": True, "state": running} for each in containers
            ],
        }


def _owned_by(pod: Mapping[str, Any], workload: Mapping[str, Any]) -> bool:
    return any(owner["uid"] == workload["metadata"]["uid"] for owner in pod["metadata"].get("ownerReferences", ()))


def _pod_of(workload: Object) -> Object:
    ref, template = ref_of(workload), workload["spec"]["template"]
    spec = dict(template["spec"])
    affinity = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if affinity:
        spec["nodeName"] = affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    owner = {"kind": ref.kind.kind, "name": ref.name, "uid": workload["metadata"]["uid"], "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{ref.name}-0",
            "namespace": ref.namespace,
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner],
        },
        "spec": spec,
    }
