"""Node objects without computers behind them: the PCs that a test wants to have.

A node looks as its kubelet, the Intel device plugins and node-feature-discovery would show it: allocatable resources,
labels, a Ready condition and a heartbeat Lease. Pods are scheduled onto it for real; `kubelet` plays their life.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from shoal.node_use import CONDITION, UseReason
from testcluster.api import Api, Manifest
from testcluster.processes import wait_until

PLATFORM_LABEL: Final = "shoal.dev/platform"
_LEASE_NAMESPACE: Final = "kube-node-lease"
_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a PC offers. The default is a Lunar Lake PC with 32 GiB, of which the system keeps some."""

    name: str
    memory: str = "28Gi"
    cpu: str = "8"
    devices: Mapping[str, int] = field(default_factory=lambda: {"gpu.intel.com/xe": 1, "npu.intel.com/accel": 1})
    labels: Mapping[str, str] = field(default_factory=lambda: {PLATFORM_LABEL: "lunar-lake"})
    taints: tuple[Mapping[str, str], ...] = ()
    unschedulable: bool = False

    def manifest(self) -> Manifest:
        """The Node object."""
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels | dict(self.labels)},
            "spec": {"taints": [dict(taint) for taint in self.taints], "unschedulable": self.unschedulable},
        }

    def resources(self) -> dict[str, str]:
        """What the node can give to pods."""
        counted = {name: str(count) for name, count in self.devices.items()}
        return {"cpu": self.cpu, "memory": self.memory, "pods": "110", "ephemeral-storage": "200Gi"} | counted


class Nodes:
    """Makes Node objects, changes what they say about themselves, and removes them at the end."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made: list[str] = []

    def add(self, spec: NodeSpec) -> Manifest:
        """A node that is Ready and that pods can be scheduled to."""
        self._create(spec)
        return self._schedulable(spec.name)

    def _create(self, spec: NodeSpec) -> None:
        self._api.create(spec.manifest())
        self._made.append(spec.name)
        resources = spec.resources()
        status: dict[str, Any] = {
            "capacity": resources,
            "allocatable": resources,
            "conditions": _conditions("True"),
            "addresses": [{"type": "Hostname", "address": spec.name}],
            "nodeInfo": _NODE_INFO,
        }
        self._api.patch("v1", "nodes/status", spec.name, {"status": status})
        self.heartbeat(spec.name)

    def _schedulable(self, name: str) -> Manifest:
        def untainted() -> Manifest | None:
            # A new Node carries the not-ready taint until the node controller has seen its Ready condition.
            node = self._api.get("v1", "nodes", name)
            taints = [taint["key"] for taint in node["spec"].get("taints", [])]
            return None if "node.kubernetes.io/not-ready" in taints else node

        return wait_until(untainted, what=f"node {name} without its not-ready taint", deadline_s=_DEADLINE_S)

    def add_lunar_lake(self, *memories: str, prefix: str = "pc") -> list[str]:
        """One Lunar Lake PC for each amount of allocatable memory; returns their names: pc-1, pc-2, ..."""
        names = [f"{prefix}-{number}" for number in range(1, len(memories) + 1)]
        for name, memory in zip(names, memories, strict=True):
            self._create(NodeSpec(name=name, memory=memory))
        for name in names:
            self._schedulable(name)
        return names

    def set_ready(self, name: str, status: Literal["True", "False", "Unknown"]) -> None:
        """What the cluster thinks of the node: Unknown is what it says of a PC that was switched off.

        Returns when the node controller has put the taint on it (or taken it away), as it does within its period.
        """
        self._api.patch("v1", "nodes/status", name, {"status": {"conditions": _conditions(status)}})
        wanted = {"True": None, "False": "node.kubernetes.io/not-ready", "Unknown": "node.kubernetes.io/unreachable"}
        taint = wanted[status]

        def tainted() -> bool:
            taints = [each["key"] for each in self._api.get("v1", "nodes", name)["spec"].get("taints", [])]
            return taint in taints if taint else not any(key in taints for key in wanted.values() if key)

        wait_until(tainted, what=f"node {name} with the taints of Ready={status}", deadline_s=_DEADLINE_S)

    def lose(self, name: str) -> None:
        """The PC is switched off or its network is gone. Its pods are evicted when their tolerations end, unless every
        node is lost: then the cluster takes itself for the one that is cut off."""
        self.set_ready(name, "Unknown")

    def cordon(self, name: str, *, cordoned: bool = True) -> None:
        """`kubectl cordon`, or `uncordon`."""
        self._api.patch("v1", "nodes", name, {"spec": {"unschedulable": cordoned}})

    def label(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels; None removes one."""
        self._api.patch("v1", "nodes", name, {"metadata": {"labels": dict(labels)}})

    def set_allocatable(self, name: str, resources: Mapping[str, str]) -> None:
        """Change what the node can give, as a kubelet or a device plugin does: `0` for a device that failed."""
        self._api.patch("v1", "nodes/status", name, {"status": {"allocatable": dict(resources)}})

    def use(self, name: str, reason: str) -> None:
        """What the agent on the PC says: UserActive and the like, or NotInUse."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = {
            "type": CONDITION,
            "status": "False" if reason == UseReason.NOBODY else "True",
            "reason": reason,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
            "message": "",
        }
        conditions = self._api.get("v1", "nodes", name)["status"]["conditions"]
        others = [each for each in conditions if each["type"] != CONDITION]
        self._api.patch("v1", "nodes/status", name, {"status": {"conditions": [*others, said]}})

    def heartbeat(self, name: str) -> None:
        """Renew the node's Lease, as its kubelet does every few seconds."""
        self._api.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": _LEASE_NAMESPACE},
                "spec": {
                    "holderIdentity": name,
                    "leaseDurationSeconds": 40,
                    "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
                },
            }
        )

    def remove(self, name: str) -> None:
        """The node is taken out of the cluster, with its Lease."""
        self._api.delete("v1", "nodes", name)
        self._api.delete("coordination.k8s.io/v1", "leases", name, namespace=_LEASE_NAMESPACE)
        if name in self._made:
            self._made.remove(name)

    def remove_all(self) -> None:
        """Remove every node that was made here."""
        for name in list(self._made):
            self.remove(name)


_NODE_INFO: Final = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "osImage": "Ubuntu 24.04",
    "kernelVersion": "6.14.0",
    "kubeletVersion": "v1.34.4",
    "kubeProxyVersion": "",
    "containerRuntimeVersion": "containerd://2.1.0",
    "bootID": "",
    "machineID": "",
    "systemUUID": "",
}


def _conditions(ready: str) -> list[dict[str, str]]:
    """The conditions that a kubelet reports; merge-patch replaces the list as a whole."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reason = {"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}[ready]
    pressures = [
        {"type": name, "status": "False", "reason": f"KubeletHasNo{name}"}
        for name in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    conditions = [*pressures, {"type": "Ready", "status": ready, "reason": reason}]
    return [each | {"lastHeartbeatTime": now, "lastTransitionTime": now, "message": ""} for each in conditions]
