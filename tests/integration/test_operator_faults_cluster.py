"""Faults between any two calls to a real API server: the same objects come out, none twice and none left over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config

from shoal.manifest import ModelShape
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json
from shoal_operator.cluster.api import KubernetesCluster
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.kinds import CHILDREN, NODE, POD, SECRET, SHARDED_MODEL, kind_of
from shoal_operator.errors import OperatorError, api_error
from shoal_operator.names import MANAGED_BY
from shoal_operator.reconcile.reconciler import Reconciler
from shoal_operator.settings import OperatorSettings
from testcluster.api import Api, Manifest
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubelet import RUNNING, Kubelet, PodFate
from testcluster.nodes import Nodes

ROUNDS = 400
NODES = 8
SHAPE = ModelShape(
    family="llama",
    layers=8,
    hidden_size=1024,
    heads=8,
    kv_heads=4,
    head_size=128,
    vocab_size=32000,
    max_context=4096,
)
FACTS = ModelFacts(SHAPE, 1 << 28, (1 << 27,) * 8, 1 << 28, (1 << 27,) * 10, "a" * 64)
FAULTS = (409, 403, 429, 500, 0)


class Died(BaseException):
    """The process is gone."""


class Faulty:
    """The real cluster; the call of a given number fails, before it happens or after."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self.calls = 0
        self.at = 0
        self.after = False
        self.status: int | None = None

    def arm(self, at: int, *, after: bool, status: int | None) -> None:
        self.calls, self.at, self.after, self.status = 0, at, after, status

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cluster, name)

        async def call(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            hit = self.calls == self.at
            if hit and not self.after:
                self._fail()
            answer = await method(*arguments, **more)
            if hit and self.after:
                self._fail()
            return answer

        return call

    def _fail(self) -> None:
        if self.status is None:
            raise Died
        raise api_error("injected", self.status, "injected")


class Operator:
    """A reconciler that can be started afresh, with a cache filled by lists."""

    def __init__(self, cluster: Faulty, real: KubernetesCluster, namespace: str) -> None:
        self._cluster, self._real, self._namespace = cluster, real, namespace
        self.start()

    def start(self) -> None:
        self.cache = Cache()
        settings = OperatorSettings(namespace=self._namespace, stage_image="stage:1", router_image="router:1")
        self._reconciler = Reconciler(self._cluster, self.cache, settings)

    async def once(self, name: str) -> None:
        kinds = (SHARDED_MODEL, POD, *CHILDREN)
        listings = await asyncio.gather(
            self._real.list(NODE),
            *(self._real.list(kind, self._namespace, MANAGED_BY if kind in CHILDREN else None) for kind in kinds),
        )
        self.cache.replace(NODE, listings[0].items)
        for kind, listing in zip(kinds, listings[1:], strict=True):
            self.cache.replace(kind, listing.items, self._namespace)
        await self._reconciler.reconcile((self._namespace, name))

    def ready(self, name: str) -> bool:
        for body in self.cache.of_kind(SHARDED_MODEL):
            if body["metadata"]["name"] == name:
                conditions = body.get("status", {}).get("conditions", [])
                return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return False

    def objects(self, name: str) -> list[tuple[str, str]]:
        """What exists of a model, without what differs from model to model; what exists twice is there twice."""
        found = []
        for obj in self.cache.children(self._namespace, name):
            kind = kind_of(obj)
            if kind == POD or obj["metadata"].get("deletionTimestamp"):
                continue
            if kind == SECRET:
                content: Any = sorted(obj["data"])
            else:
                content = obj["metadata"]["annotations"].get("shoal.dev/cut", "")
            title = obj["metadata"]["name"].replace(name, "NAME")
            # A stage's name ends with the hash of its node, which another model's stage cannot have as well.
            parts = title.split("-")
            title = "-".join(parts[:-1]) if len(parts[-1]) == 8 else title
            found.append((f"{kind}/{title}", json.dumps(content)))
        return sorted(found)


@pytest.fixture
async def real(chart_service_account: Kubeconfig) -> AsyncIterator[KubernetesCluster]:
    configuration = aio.Configuration()
    await aio_config.load_kube_config(
        config_file=str(chart_service_account.path), client_configuration=configuration, persist_config=False
    )
    async with KubernetesCluster(aio.ApiClient(configuration)) as cluster:
        yield cluster


@pytest.fixture
def office(crd: str, nodes: Nodes, kubelet: Kubelet) -> None:
    report = facts_to_json(FACTS)

    def decide(pod: Manifest) -> PodFate:
        owners = {owner["kind"] for owner in pod["metadata"].get("ownerReferences", [])}
        return PodFate(phase="Succeeded", ready=False, message=report) if "Job" in owners else RUNNING

    kubelet.decide(decide)
    # More than one model needs: those that were deleted hold their nodes until the garbage collector has come by.
    nodes.add_lunar_lake(*["28Gi"] * NODES)


def model(name: str) -> Manifest:
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "ShardedModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"volume": {"hostPath": {"path": "/srv/model"}}},
            "stages": {"count": 1},
            "scheduler": {"streams": 1, "maxContext": 512},
        },
    }


async def settle(operator: Operator, admin: Api, namespace: str, name: str) -> list[tuple[str, str]]:
    admin.apply(model(name), namespace=namespace)
    for _ in range(ROUNDS):
        try:
            await operator.once(name)
        except Died:
            operator.start()
        except OperatorError:
            continue
        if operator.ready(name):
            break
    else:
        raise AssertionError(f"{name} does not become ready")
    objects = operator.objects(name)
    admin.delete("shoal.dev/v1alpha1", "shardedmodels", name, namespace=namespace)
    return objects


@pytest.mark.parametrize(
    "every",
    [
        # Calls next to each other are of one sort: each eighth one still meets most sorts, with every kind of fault.
        pytest.param(8, id="an-eighth-of-them"),
        pytest.param(1, id="all-of-them", marks=pytest.mark.slow),
    ],
)
async def test_a_fault_at_any_call_changes_nothing_in_the_end(
    office: None, real: KubernetesCluster, admin: Api, namespace: str, every: int
) -> None:
    cluster = Faulty(real)
    operator = Operator(cluster, real, namespace)
    wanted = await settle(operator, admin, namespace, "calm")
    calls = cluster.calls
    assert calls > 20
    for turn, number in enumerate(range(1, calls + 1, every)):
        after = turn % 2 == 0
        # Every call meets a death or an error, in turn; each kind of error meets calls of every sort.
        status = None if turn % 3 == 0 else FAULTS[turn % len(FAULTS)]
        cluster.arm(number, after=after, status=status)
        found = await settle(operator, admin, namespace, f"fault-{number}")
        assert found == wanted, f"call {number}, status {status}, after {after}"
