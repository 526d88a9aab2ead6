"""A small office in memory: five PCs, a ShardedModel, the reconciler, and somebody who plays kubelet."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.manifest import ModelShape
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.fake import FakeCluster
from shoal_operator.cluster.fake_workloads import FakeWorkloads
from shoal_operator.cluster.kinds import CHILDREN, NODE, POD, SHARDED_MODEL, Object, Ref
from shoal_operator.cluster.routers import FakeRouters
from shoal_operator.reconcile.reconciler import Outcome, Reconciler
from shoal_operator.settings import OperatorSettings

ROOT = Path(__file__).parents[3]
START = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)
GIB = 1 << 30
MIB = 1 << 20


def node(name: str, memory: str = "16Gi", *, gpu: str = "gpu.intel.com/xe", **spec: Any) -> Object:
    allocatable = {"cpu": "8", "memory": memory, "npu.intel.com/accel": "1"} | ({gpu: "1"} if gpu else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"shoal.dev/platform": "lunar-lake"}},
        "spec": spec,
        "status": {
            "capacity": {"memory": memory},
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}],
        },
    }


def llama_facts(digest: str = "a" * 64) -> ModelFacts:
    """Llama 3.1 8B in INT4, nearly: 32 layers of 125 MiB."""
    shape = ModelShape(
        family="llama",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        vocab_size=128256,
        max_context=131072,
    )
    return ModelFacts(
        shape=shape,
        embed_bytes=525 * MIB,
        layer_bytes=(125 * MIB,) * 32,
        head_bytes=525 * MIB,
        largest_tensors=(525 * MIB, *(30 * MIB,) * 32, 525 * MIB),
        digest=digest,
    )


class Office:
    """Drives the reconciler by hand: `step` is what watches, queue and kubelets would do once."""

    def __init__(self, *objects: Object, settings: OperatorSettings | None = None) -> None:
        self.settings = settings or OperatorSettings(stage_image="stage:1", router_image="router:1")
        self.cluster = FakeCluster(*objects)
        self.facts = llama_facts()
        self.workloads = FakeWorkloads(self.cluster, facts_to_json(self.facts))
        self.now = START
        self.new_operator()

    def new_operator(self) -> None:
        """The operator starts afresh: cache and memory are empty."""
        self.cache = Cache()
        self.routers = FakeRouters()
        self.reconciler = Reconciler(
            self.cluster, self.cache, self.settings, routers=self.routers, wall=lambda: self.now
        )

    def refresh(self) -> None:
        """What the watches would have brought."""
        for kind in (SHARDED_MODEL, NODE, POD, *CHILDREN):
            self.cache.replace(kind, self.cluster.of_kind(kind))
        self.cache.check_integrity()

    async def reconcile(self, name: str = "llama-8b") -> Outcome:
        self.refresh()
        return await self.reconciler.reconcile(("ai", name))

    async def settle(self, name: str = "llama-8b", rounds: int = 10) -> Outcome:
        """Until nothing is written any more."""
        for _ in range(rounds):
            before = len(self.cluster.writes)
            outcome = await self.reconcile(name)
            self.workloads.step()
            if len(self.cluster.writes) == before:
                return outcome
        raise AssertionError(f"still writing after {rounds} rounds: {self.cluster.writes[before:]}")

    def apply(self, **spec: Any) -> Object:
        """kubectl apply of the example with changes to its spec."""
        return self.cluster.put(sharded_model(**spec))

    def model(self, name: str = "llama-8b") -> Object:
        return self.cluster.objects[Ref(SHARDED_MODEL, "ai", name)]

    def condition(self, kind: str, name: str = "llama-8b") -> dict[str, Any]:
        conditions = self.model(name)["status"]["conditions"]
        return next(each for each in conditions if each["type"] == kind)

    def names(self, kind: Any) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.cluster.of_kind(kind))

    def stages(self) -> list[tuple[str, str, str]]:
        """(index, node, blocks) of each stage Deployment."""
        found = []
        for obj in self.cluster.objects.values():
            if obj["kind"] == "Deployment" and obj["metadata"]["labels"]["shoal.dev/role"] == "stage":
                spec = obj["spec"]["template"]["spec"]
                terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                where = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
                command = spec["containers"][0]["command"]
                blocks = next(part for part in command if part.startswith("--blocks="))
                found.append((obj["metadata"]["labels"]["shoal.dev/stage"], where, blocks.removeprefix("--blocks=")))
        return sorted(found)


def sharded_model(name: str = "llama-8b", **spec: Any) -> Object:
    """examples/llama-3.1-8b.yaml with changes, as the API server would hold it in namespace `ai`; no standbys."""
    body = copy.deepcopy(_example())
    body["spec"]["placement"]["sparePods"] = 0
    body["metadata"] |= {"name": name, "namespace": "ai"}
    body["spec"] |= spec
    return body


@cache
def _example() -> Object:
    parsed: Object = yaml.safe_load((ROOT / "examples/llama-3.1-8b.yaml").read_text())
    return parsed


@pytest.fixture
def office() -> Office:
    """Five Lunar Lake PCs and the example, not yet reconciled."""
    sizes = {"pc-01": "28Gi", "pc-02": "14Gi", "pc-03": "14Gi", "pc-04": "12Gi", "pc-05": "10Gi"}
    made = Office(*(node(name, memory) for name, memory in sizes.items()))
    made.apply(stages={"count": 2})
    return made


@pytest.fixture
def make_office() -> Callable[..., Office]:
    """Offices of a test's own."""
    return Office


@pytest.fixture
def make_node() -> Callable[..., Object]:
    return node


@pytest.fixture
def make_model() -> Callable[..., Object]:
    return sharded_model


@pytest.fixture
def facts() -> ModelFacts:
    return llama_facts()
