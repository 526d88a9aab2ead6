"""A node of the cluster on a PC: containerd, kubelet, kube-proxy and kube-router, each one the real program.

containerd and runc are those of this machine. kube-router enforces NetworkPolicies and nothing else, as in k3s; pods
are connected by the bridge plugin, one /24 a node.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import psutil

from testcluster import bridge
from testcluster.api import Api
from testcluster.certificates import Authority
from testcluster.kubeconfig import Kubeconfig
from testcluster.machine import Machine
from testcluster.processes import wait_until

SOCKET: Final = "/run/containerd/containerd.sock"
PAUSE: Final = "shoal.test/pause:1"
DNS: Final = "10.96.0.10"
READY_S: Final = 90.0
ANSWER_S: Final = 5.0
_EVICTION: Final = 100 << 20
_CONFIG: Final = "/var/lib/node"


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs of a node are."""

    kubelet: Path
    kube_proxy: Path
    kube_router: Path


@dataclass(slots=True)
class Worker:
    """A node. `memory` (bytes) is what it offers to pods."""

    machine: Machine
    programs: Programs
    authority: Authority
    server: str
    memory: int

    @property
    def name(self) -> str:
        """The Node's name."""
        return self.machine.name

    def start(self, seed: Path) -> None:
        """Switch the PC on and start its programs; its disk gets the images of `seed` the first time."""
        machine = self.machine
        disk = machine.disk / "var-lib/containerd"
        if not disk.exists():
            _share(seed, disk)
        machine.power_on()
        self._write_configuration()
        machine.start("containerd", ["containerd", "--config", f"{_CONFIG}/containerd.toml"])
        wait_until(self._engine_answers, what=f"containerd on {self.name}", deadline_s=READY_S)
        self.start_kubelet()
        proxy = ["--kubeconfig", f"{_CONFIG}/proxy.kubeconfig", "--hostname-override", self.name]
        proxy += ["--proxy-mode", "nftables", "--cluster-cidr", bridge.PODS, "--conntrack-max-per-core", "0"]
        machine.start("kube-proxy", [str(self.programs.kube_proxy), *proxy])

    def start_kubelet(self) -> None:
        """At the start, and again after it was stopped."""
        flags = ["--config", f"{_CONFIG}/kubelet.json", "--kubeconfig", f"{_CONFIG}/kubelet.kubeconfig"]
        flags += ["--hostname-override", self.name, "--node-ip", self.machine.address]
        self.machine.start("kubelet", [str(self.programs.kubelet), *flags])

    def stop_kubelet(self) -> None:
        """End it; the containers run on."""
        self.machine.stop("kubelet")

    def kill_containers(self, name: str) -> int:
        """SIGKILL to all running containers of this name; how many there were."""
        running = {line.split()[0] for line in self.ctr("tasks", "list").splitlines()[1:] if "RUNNING" in line}
        named = self.ctr("containers", "list", "--quiet", f'labels."io.kubernetes.container.name"=={name}').split()
        for container in running.intersection(named):
            self.ctr("tasks", "kill", "--signal", "SIGKILL", container)
        return len(running.intersection(named))

    def wait_until_ready(self, api: Api) -> None:
        """Wait until the node is Ready, and then have NetworkPolicies enforced on it."""

        def ready() -> bool:
            for process in self.machine.processes.values():
                process.check_running()
            return is_ready(api, self.name)

        wait_until(ready, what=f"node {self.name} to be Ready", deadline_s=READY_S)
        if "kube-router" not in self.machine.processes:
            # It looks for its Node object at the start, and ends without one.
            flags = ["--run-firewall=true", "--run-router=false", "--run-service-proxy=false"]
            flags += [f"--hostname-override={self.name}", "--health-port=0", "--metrics-port=0"]
            flags += [f"--service-cluster-ip-range={bridge.SERVICES}", f"--kubeconfig={_CONFIG}/proxy.kubeconfig"]
            self.machine.start("kube-router", [str(self.programs.kube_router), *flags])

    def ctr(self, *arguments: str) -> str:
        """containerd's own command, among the containers of Kubernetes."""
        return self.machine.run("ctr", "--address", SOCKET, "--namespace", "k8s.io", *arguments)

    def _engine_answers(self) -> bool:
        """Whether a kubelet could use it: the socket is there before what listens on it is ready."""
        self.machine.processes["containerd"].check_running()
        with grpc.insecure_channel(f"unix:{self.machine.root}{SOCKET}") as channel:
            try:
                version = channel.unary_unary("/runtime.v1.RuntimeService/Version", bytes, bytes)
                version(b"", timeout=ANSWER_S)
            except grpc.RpcError:
                return False
        return True

    def _write_configuration(self) -> None:
        folder = self.machine.path(_CONFIG)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "resolv.conf").write_text(f"nameserver {bridge.ADDRESS}\n")
        cni = folder / "cni"
        cni.mkdir(exist_ok=True)
        (cni / "10-office.conflist").write_text(json.dumps(_pod_network(self.machine.number)))
        (folder / "containerd.toml").write_text(_CONTAINERD)
        serving = self.authority.server(f"kubelet-{self.name}", dns=(self.name,), addresses=(self.machine.address,))
        (folder / "kubelet.json").write_text(
            json.dumps(self._kubelet(str(serving.certificate), str(serving.key)), indent=1)
        )
        kubelet = self.authority.client(f"system:node:{self.name}", groups=("system:nodes",))
        # kube-proxy's own rights would do for it, but not for kube-router, which reads NetworkPolicies.
        proxy = self.authority.client(f"proxy-{self.name}", groups=("system:masters",))
        for name, client in (("kubelet", kubelet), ("proxy", proxy)):
            Kubeconfig.write(
                folder / f"{name}.kubeconfig",
                server=self.server,
                authority=self.authority.certificate_file,
                user=f"{name}-{self.name}",
                client=client,
            )

    def _kubelet(self, certificate: str, key: str) -> dict[str, Any]:
        reserved = psutil.virtual_memory().total - self.memory - _EVICTION
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.machine.cgroup,
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.authority.certificate_file)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": certificate,
            "tlsPrivateKeyFile": key,
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{_CONFIG}/resolv.conf",
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 20,
            "evictionHard": {"memory.available": str(_EVICTION), "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            # All PCs share this machine's memory: what a node does not offer is reserved.
            "systemReserved": {"memory": str(reserved)},
        }


def is_ready(api: Api, name: str) -> bool:
    """Whether the API server takes the node for Ready."""
    node = api.find("v1", "nodes", name) or {}
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _share(seed: Path, disk: Path) -> None:
    """A containerd's folder with the seed's images. Only its databases are copied: nobody writes into blobs and layers.

    A layer has some ten thousand files; where it lies is all that an overlay needs of it.
    """
    layers = Path("io.containerd.snapshotter.v1.overlayfs/snapshots")

    def copy(there: str, here: str) -> None:
        if there.endswith(".db"):
            shutil.copy2(there, here)
        else:
            os.link(there, here)

    def files_of_layers(folder: str, _: list[str]) -> list[str]:
        return ["fs"] if Path(folder).parent == seed / layers else []

    shutil.copytree(seed, disk, copy_function=copy, ignore=files_of_layers)
    for layer in (seed / layers).iterdir():
        (disk / layers / layer.name / "fs").symlink_to(layer / "fs")


def _pod_network(number: int) -> dict[str, Any]:
    ranges = [[{"subnet": bridge.pods_of(number)}]]
    addresses = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    plugged = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
    return {
        "cniVersion": "0.4.0",
        "name": "office",
        "plugins": [plugged | {"ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


# restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot lower it, and no container would start.
_CONTAINERD: Final = f"""
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{_CONFIG}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"""
