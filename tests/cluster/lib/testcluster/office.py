"""An office: PCs of different memory in one cluster, everything real but the PCs' own boards.

    control plane, CoreDNS and the package index on this machine ── bridge ── pc-1 … pc-n, each with its own network,
    mounts, processes, containerd, kubelet, kube-proxy and kube-router

Everything ends with the test run, in whatever way that ends; `left_behind` says what did not.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from testcluster import binaries, bridge, control_plane, dns, images, machine, package_index
from testcluster.api import Api
from testcluster.control_plane import ControlPlane
from testcluster.machine import Machine
from testcluster.storage import Storage
from testcluster.worker import Programs, Worker

NODE_LOST_AFTER: Final = "20s"


@dataclass(slots=True)
class Office:
    """A cluster of PCs, running."""

    plane: ControlPlane
    api: Api
    workers: dict[str, Worker]
    seed: Path

    def power_off(self, name: str) -> None:
        """A PC loses power: its packets stop first, then its programs."""
        self.workers[name].machine.power_off()

    def power_on(self, name: str) -> None:
        """Its power is back: it starts from its disk."""
        worker = self.workers[name]
        worker.start(self.seed)
        machine.know_each_other([each.machine for each in self.workers.values()])
        worker.wait_until_ready(self.api)

    def unplug(self, name: str) -> None:
        """Its cable is cut; its programs run on."""
        self.workers[name].machine.unplug()

    def plug_in_again(self, name: str) -> None:
        """Its cable is mended."""
        self.workers[name].machine.plug_in_again()
        bridge.give_routes(self.workers[name].machine.number)

    def reach_services_by(self, name: str) -> None:
        """Send what this machine asks of Services to this PC: a connection that goes by a lost one is lost with it."""
        bridge.reach_services_by(self.workers[name].machine.number)


def impossible() -> str:
    """Why this machine cannot have an office; empty when it can."""
    reason = images.impossible()
    if reason:
        return reason
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "an office of PCs needs cgroup v1 (systemd.unified_cgroup_hierarchy=0): its kubelets share one machine"
    sets = (binaries.CONTROL_PLANE, binaries.NODE, binaries.HELM, binaries.COREDNS, binaries.KUBE_ROUTER)
    if any(binaries.missing(each) for each in sets) and shutil.which("go") is None:
        return "an office of PCs needs Go 1.26 to build Kubernetes with, the first time (https://go.dev/dl)"
    return ""


@contextmanager
def running(folder: Path, memories: Sequence[int]) -> Iterator[Office]:
    """An office with one PC for each amount of memory (bytes that it offers to pods); logs go to `folder`."""
    cluster, node = binaries.ensure(binaries.CONTROL_PLANE), binaries.ensure(binaries.NODE)
    programs = Programs(
        kubelet=node / "kubelet",
        kube_proxy=node / "kube-proxy",
        kube_router=binaries.ensure(binaries.KUBE_ROUTER) / "kube-router",
    )
    coredns = binaries.ensure(binaries.COREDNS) / "coredns"
    seed = images.seed(package_index.URL)
    with ExitStack() as stack:
        stack.enter_context(_interrupted_when_terminated())
        stack.enter_context(bridge.bridge())
        _sweep()
        stack.enter_context(package_index.served())
        disks = Path(stack.enter_context(TemporaryDirectory(prefix="disks-", dir=binaries.cache_root())))
        plane = stack.enter_context(
            control_plane.running(cluster, folder, address=bridge.ADDRESS, node_lost_after=NODE_LOST_AFTER)
        )
        api = stack.enter_context(Api(plane.admin))
        plane.processes["coredns"] = dns.start(coredns, api, plane.folder)
        workers = {}
        for number, memory in enumerate(memories, 1):
            pc = Machine(number=number, disk=disks / f"pc-{number}", logs=folder / f"pc-{number}")
            stack.callback(pc.remove)
            workers[pc.name] = Worker(pc, programs, plane.authority, plane.admin.server, memory)
        for worker in workers.values():
            worker.start(seed)
        machine.know_each_other([each.machine for each in workers.values()])
        for worker in workers.values():
            worker.wait_until_ready(api)
        bridge.reach_services_by(1)

        def make_folder(node: str, path: str) -> None:
            # As local-path's own pod makes it: whoever the claim's pods run as can write there.
            made = workers[node].machine.path(path)
            made.mkdir(parents=True, exist_ok=True)
            made.chmod(0o777)

        stack.enter_context(Storage(plane.admin, make_folder))
        yield Office(plane, api, workers, seed)


@contextmanager
def _interrupted_when_terminated() -> Iterator[None]:
    """SIGTERM ends an office as Ctrl-C does, by its way out."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _sweep() -> None:
    """Take away what a killed run left: its processes and mounts are gone with it, its files are not."""
    machine.remove_cgroups()
    for disks in binaries.cache_root().glob("disks-*"):
        shutil.rmtree(disks)


def left_behind() -> list[str]:
    """What offices that have ended left on this machine: network devices, control groups, disks."""
    disks = [str(each) for each in binaries.cache_root().glob("disks-*")]
    return [*machine.cables_left(), *machine.cgroups_left(), *disks]
