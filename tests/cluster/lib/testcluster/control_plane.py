"""A real Kubernetes control plane on loopback: etcd, API server, controller manager, scheduler.

There are no kubelets: Node objects are made by the tests (`nodes`), and `kubelet` plays what a node's kubelet would
report. Everything else is the real thing: validation, defaulting, RBAC, garbage collection, scheduling, Jobs,
Deployments, taints and evictions. The API server writes an audit log, which `audit` reads.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from testcluster.api import Api
from testcluster.audit import AuditLog
from testcluster.certificates import Authority, KeyPair, signing_keys
from testcluster.kubeconfig import Kubeconfig
from testcluster.processes import Process, ProcessEnded, free_ports, wait_until

START_DEADLINE_S: Final = 120.0
_ATTEMPTS: Final = 3
SERVICE_NETWORK: Final = "10.96.0.0/16"
_SERVICE_ADDRESS: Final = "10.96.0.1"
LOOPBACK: Final = "127.0.0.1"

# Node objects have no kubelet that sends heartbeats: a test says itself when one is gone, and nothing else decides so.
_NEVER: Final = "24h"

# Twenty requests a second are meant for clusters with other users; tests would wait for the garbage collector.
_UNTHROTTLED: Final = ("--kube-api-qps=500", "--kube-api-burst=500")

# Reads are left out, and so are the writes of the control plane itself; what is left is what the tests count.
_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]},
        {"level": "Metadata"},
    ],
}


@dataclass(slots=True)
class ControlPlane:
    """A running control plane. `folder` holds its data, certificates, kubeconfigs and logs."""

    folder: Path
    binaries: Path
    authority: Authority
    admin: Kubeconfig
    audit: AuditLog
    address: str = LOOPBACK
    node_lost_after: str = _NEVER
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def kubectl(self) -> Path:
        """The kubectl of this cluster's version."""
        return self.binaries / "kubectl"

    def check_running(self) -> None:
        """Raise ProcessEnded when one of the programs has ended."""
        for process in self.processes.values():
            process.check_running()

    def stop(self) -> None:
        """End the programs, the API server before its etcd, which waits for its clients longer than anybody needs."""
        for name, process in reversed(self.processes.items()):
            if name == "etcd":
                process.kill()
            else:
                process.stop()


@contextmanager
def running(
    binaries: Path, folder: Path, *, address: str = LOOPBACK, node_lost_after: str = _NEVER
) -> Iterator[ControlPlane]:
    """Start a control plane with its data in `folder`, and end it after use.

    With kubelets it listens at an `address` that they reach, and says when a node without heartbeats is lost.
    """
    plane = _start(binaries, folder, address, node_lost_after)
    try:
        yield plane
    finally:
        plane.stop()


def _start(binaries: Path, folder: Path, address: str, node_lost_after: str) -> ControlPlane:
    """Start on free ports; another process may take one in between, and then it is done again on others."""
    for attempt in range(1, _ATTEMPTS + 1):
        here = folder / f"control-plane-{attempt}"
        here.mkdir(parents=True)
        plane = _prepare(binaries, here, address, node_lost_after)
        try:
            _start_programs(plane, free_ports(3))
        except ProcessEnded as error:
            plane.stop()
            if attempt == _ATTEMPTS or "address already in use" not in str(error):
                raise
        except BaseException:
            plane.stop()
            raise
        else:
            return plane
    raise AssertionError("the last attempt returns or raises")


def _prepare(binaries: Path, folder: Path, address: str, node_lost_after: str) -> ControlPlane:
    authority = Authority.create(folder)
    (folder / "audit-policy.yaml").write_text(json.dumps(_AUDIT_POLICY))
    admin = Kubeconfig(path=folder / "admin.kubeconfig", server="", authority=authority.certificate_file, user="admin")
    return ControlPlane(
        folder=folder,
        binaries=binaries,
        authority=authority,
        admin=admin,
        audit=AuditLog(folder / "audit.log"),
        address=address,
        node_lost_after=node_lost_after,
    )


def _start_programs(plane: ControlPlane, ports: list[int]) -> None:
    etcd_port, peer_port, api_port = ports
    folder, end = plane.folder, time.monotonic() + START_DEADLINE_S
    private, public = signing_keys(folder)
    etcd_url, peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    _run(
        plane,
        "etcd",
        [
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",  # The data lives as long as the tests.
            "--log-level=warn",
        ],
    )
    server = plane.authority.server(
        "kube-apiserver",
        dns=("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
        addresses=tuple(dict.fromkeys((LOOPBACK, plane.address, _SERVICE_ADDRESS))),
    )
    admin_client = plane.authority.client("admin", groups=("system:masters",))
    _run(
        plane,
        "kube-apiserver",
        [
            f"--etcd-servers={etcd_url}",
            f"--bind-address={plane.address}",
            f"--advertise-address={plane.address}",
            *_for_nodes(plane.address, admin_client),
            f"--secure-port={api_port}",
            f"--cert-dir={folder}",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--client-ca-file={plane.authority.certificate_file}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--audit-policy-file={folder / 'audit-policy.yaml'}",
            f"--audit-log-path={plane.audit.path}",
            "--audit-log-mode=blocking-strict",  # A request is answered after it is in the log: tests count at once.
        ],
    )
    url = f"https://{plane.address}:{api_port}"
    plane.admin = _kubeconfig(plane, "admin", url, admin_client)
    with Api(plane.admin) as api:

        def ready() -> bool:
            plane.check_running()
            return api.is_ready()

        wait_until(ready, what="the API server's /readyz", deadline_s=end - time.monotonic())
        for program, flags in (
            (
                "kube-controller-manager",
                [
                    f"--service-account-private-key-file={private}",
                    f"--root-ca-file={plane.authority.certificate_file}",
                    "--use-service-account-credentials=true",
                    f"--node-monitor-grace-period={plane.node_lost_after}",
                    f"--node-startup-grace-period={_NEVER}",
                    "--node-monitor-period=1s",
                    "--node-eviction-rate=100",  # Nodes a second; the default is one in ten seconds.
                    "--concurrent-gc-syncs=5",
                ],
            ),
            ("kube-scheduler", []),
        ):
            user = f"system:{program}"
            config = _kubeconfig(plane, program, url, plane.authority.client(user))
            same = [f"--kubeconfig={config.path}", "--leader-elect=false", "--secure-port=0", *_UNTHROTTLED]
            _run(plane, program, [*same, *flags])

        def settled() -> bool:
            plane.check_running()
            return api.find("v1", "serviceaccounts", "default", namespace="default") is not None

        wait_until(settled, what="the default ServiceAccount", deadline_s=end - time.monotonic())


def _for_nodes(address: str, client: KeyPair) -> list[str]:
    """How the API server is found by pods, and reaches kubelets for logs and exec."""
    if address == LOOPBACK:
        return ["--endpoint-reconciler-type=none"]  # A loopback address is no endpoint of the `kubernetes` Service.
    reach = [f"--kubelet-client-certificate={client.certificate}", f"--kubelet-client-key={client.key}"]
    return [*reach, "--kubelet-preferred-address-types=InternalIP"]


def _run(plane: ControlPlane, program: str, flags: list[str]) -> None:
    plane.processes[program] = Process.start(
        program,
        [str(plane.binaries / program), *flags],
        log=plane.folder / f"{program}.log",
        # Nothing of the caller's proxies: every connection stays on loopback.
        environment={"PATH": os.defpath, "HOME": str(plane.folder)},
        folder=plane.folder,
    )


def _kubeconfig(plane: ControlPlane, name: str, url: str, client: KeyPair) -> Kubeconfig:
    return Kubeconfig.write(
        plane.folder / f"{name}.kubeconfig",
        server=url,
        authority=plane.authority.certificate_file,
        user=name,
        client=client,
    )
