"""A pytest plugin: an office with operators in it, and what tests ask of the ShardedModels there.

Operators are processes of this machine that act as the chart's ServiceAccount: one can be killed at any moment, and the
audit log tells what it wrote.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from shoal.manifest import ModelShape
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json
from testcluster.api import Api, Manifest
from testcluster.audit import AuditLog
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubelet import RUNNING, Kubelet, PodFate
from testcluster.nodes import Nodes
from testcluster.processes import Process, free_ports, wait_until

ROOT: Final = Path(__file__).parents[4]
EXAMPLE: Final = ROOT / "examples/llama-3.1-8b.yaml"
MODELS: Final = "shoal.dev/v1alpha1", "shardedmodels"
DEADLINE_S: Final = 60.0
_MIB: Final = 1 << 20

Start = Callable[..., Process]


def llama_report() -> str:
    """What the compile Job says of Llama 3.1 8B in INT4, nearly."""
    shape = ModelShape(
        family="llama", layers=32, hidden_size=4096, heads=32, kv_heads=8, head_size=128, vocab_size=128256,
        max_context=131072,
    )  # fmt: skip
    facts = ModelFacts(
        shape=shape,
        embed_bytes=525 * _MIB,
        layer_bytes=(125 * _MIB,) * 32,
        head_bytes=525 * _MIB,
        largest_tensors=(525 * _MIB, *(30 * _MIB,) * 32, 525 * _MIB),
        digest="a" * 64,
    )
    return facts_to_json(facts)


def all_well(pod: Manifest) -> PodFate:
    """Jobs report Llama, every other pod becomes ready."""
    owners = {owner["kind"] for owner in pod["metadata"].get("ownerReferences", [])}
    return PodFate(phase="Succeeded", ready=False, message=llama_report()) if "Job" in owners else RUNNING


def example(name: str = "llama-8b", **spec: Any) -> Manifest:
    """The example with changes to its spec."""
    body: Manifest = yaml.safe_load(EXAMPLE.read_text())
    body["metadata"]["name"] = name
    body["spec"] |= spec
    return body


def start_operator_process(name: str, folder: Path, kubeconfig: Kubeconfig, **environment: str) -> Process:
    """An operator of this machine; `environment` holds what is not as here."""
    (health,) = free_ports(1)
    settings = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig.path),
        "SHOAL_POD_NAME": name,
        "SHOAL_METRICS_PORT": "0",
        "SHOAL_HEALTH_PORT": str(health),
        "SHOAL_PAGE_PORT": "0",
        "SHOAL_LEASE_SECONDS": "3",
        "SHOAL_LOG_FORMAT": "text",
    }
    settings |= environment
    command = [sys.executable, "-m", "shoal_operator"]
    return Process.start(name, command, log=folder / f"{name}.log", environment=settings)


@pytest.fixture
def start_operator(tmp_path: Path, namespace: str, chart_service_account: Kubeconfig) -> Iterator[Start]:
    """Starts operators of the test's namespace, and ends them."""
    running: list[Process] = []

    def start(name: str = "operator-0", kubeconfig: Kubeconfig = chart_service_account, **settings: str) -> Process:
        where = {"SHOAL_NAMESPACE": namespace, "SHOAL_WATCH_NAMESPACES": namespace}
        process = start_operator_process(name, tmp_path, kubeconfig, **(where | settings))
        running.append(process)
        return process

    yield start
    for process in running:
        process.stop()


@pytest.fixture
def five_pcs(crd: str, nodes: Nodes, kubelet: Kubelet, storage: str) -> list[str]:
    """Five Lunar Lake PCs of different memory, on which everything works."""
    kubelet.decide(all_well)
    return nodes.add_lunar_lake("28Gi", "14Gi", "14Gi", "12Gi", "10Gi")


class Cluster:
    """What a test asks of the ShardedModels of its namespace."""

    def __init__(self, admin: Api, namespace: str) -> None:
        self.admin = admin
        self.namespace = namespace

    def model(self, name: str = "llama-8b") -> Manifest:
        """The ShardedModel as it is now."""
        return self.admin.get(*MODELS, name, namespace=self.namespace)

    def condition(self, kind: str, name: str = "llama-8b") -> dict[str, Any]:
        """One of its conditions; an empty one when it has none."""
        for each in self.model(name).get("status", {}).get("conditions", []):
            if each["type"] == kind:
                return dict(each)
        return {"status": "", "reason": ""}

    def wait_for(self, kind: str, status: str = "True", reason: str = "", name: str = "llama-8b") -> dict[str, Any]:
        """Wait until a condition is so; the whole status is printed when it does not come."""

        def found() -> dict[str, Any] | None:
            condition = self.condition(kind, name)
            return condition if condition["status"] == status and reason in ("", condition["reason"]) else None

        try:
            return wait_until(found, what=f"{kind}={status} {reason}", deadline_s=DEADLINE_S)
        except Exception:
            print(json.dumps(self.model(name).get("status"), indent=1))  # noqa: T201
            raise

    def replace_service(self) -> None:
        """Delete the router's Service and wait until the operator has made it anew.

        A ShardedModel is reconciled by one worker at a time: what it wrote for earlier causes was written before.
        """
        old = self.admin.get("v1", "services", "llama-8b", namespace=self.namespace)["metadata"]["uid"]
        self.admin.delete("v1", "services", "llama-8b", namespace=self.namespace)

        def anew() -> bool:
            found = self.admin.find("v1", "services", "llama-8b", namespace=self.namespace)
            return found is not None and found["metadata"]["uid"] != old

        wait_until(anew, what="the Service again", deadline_s=DEADLINE_S)

    def stages(self) -> dict[str, str]:
        """Name of each stage's Deployment, and its node."""
        return self._placed("!shoal.dev/standby")

    def standbys(self) -> dict[str, str]:
        """The same of those that stand by."""
        return self._placed("shoal.dev/standby")

    def pods(self, model: str) -> dict[str, str]:
        """The uid of each pod of stages and router, by its Deployment's name."""
        found = {}
        for pod in self.admin.list("v1", "pods", namespace=self.namespace, labels=f"shoal.dev/model={model}"):
            labels = pod["metadata"]["labels"]
            if labels["shoal.dev/role"] in ("stage", "router") and not pod["metadata"].get("deletionTimestamp"):
                found[labels.get("shoal.dev/name", labels["shoal.dev/role"])] = pod["metadata"]["uid"]
        return found

    def _placed(self, which: str) -> dict[str, str]:
        found = {}
        for each in self.admin.list("apps/v1", "deployments", namespace=self.namespace, labels=which):
            if each["metadata"]["labels"].get("shoal.dev/role") == "stage":
                terms = each["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
                term = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
                found[each["metadata"]["name"]] = term["matchFields"][0]["values"][0]
        return found


@pytest.fixture
def cluster(admin: Api, namespace: str) -> Cluster:
    """Asks for the ShardedModels of the test's namespace."""
    return Cluster(admin, namespace)


@pytest.fixture
def serving(start_operator: Start, five_pcs: list[str], admin: Api, namespace: str, cluster: Cluster) -> Process:
    """An operator, and the example that serves."""
    operator = start_operator()
    admin.apply(example(), namespace=namespace)
    cluster.wait_for("Ready")
    return operator


def written(audit: AuditLog, user: str, since: int) -> list[tuple[str, str, str]]:
    """What the user wrote since the mark (verb, resource, name); it wrote something."""
    writes = wait_until(lambda: audit.writes(user=user, since=since), what="a write", deadline_s=DEADLINE_S)
    return [(write.verb, write.what, write.name) for write in writes]
