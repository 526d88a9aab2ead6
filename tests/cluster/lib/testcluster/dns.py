"""CoreDNS for the cluster, on this machine's address of the bridge; pods ask the Service 10.96.0.10, as everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from testcluster import bridge
from testcluster.api import Api
from testcluster.processes import Process
from testcluster.worker import DNS

NAMESPACE: Final = "kube-system"
# As k3s has it: answers are kept for 30 s, those for names of the cluster for as long as the plugin says (5 s).
_COREFILE: Final = """\
.:53 {{
    bind {address}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
    cache 30
}}
"""


def start(program: Path, api: Api, folder: Path) -> Process:
    """Start it, and make the Service."""
    file = folder / "Corefile"
    file.write_text(_COREFILE.format(address=bridge.ADDRESS, kubeconfig=api.kubeconfig.path))
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    metadata = {"name": "kube-dns", "namespace": NAMESPACE}
    api.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": DNS, "ports": ports}})
    api.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata | {"name": "kube-dns-1", "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [bridge.ADDRESS], "conditions": {"ready": True}}],
            "ports": ports,
        }
    )
    # Nothing of the caller's proxies: the API server is on the bridge.
    return Process.start("coredns", [str(program), "-conf", str(file)], log=folder / "coredns.log", environment={})
