"""Faults between any two calls to a real API server: the same objects come out, none twice and none left over.

A ShardedModel is made, and then cut anew: objects are created, changed and removed meanwhile. Each call in turn meets a
death of the operator or an error, before it happens or after (when only its answer is lost).
"""

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

# A minute and more: the garbage collector looks for new kinds every 30 s, and until it knows ours, models that were
# deleted hold their nodes.
ROUNDS = 1500
NODES = 16
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
ERRORS = (409, 403, 429, 500, 0)
"""Conflict, a missing right, throttled, a server error, no answer at all."""
WRITES = ("apply", "apply_status", "create", "delete", "replace")


Exists = list[tuple[str, str]]
"""What exists of a model: its objects' names, with what of their content is the same for every model."""


class Died(BaseException):
    """The process is gone."""


class Faulty:
    """The real cluster; the call of a given number fails, before it happens or after."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self.calls = 0
        self.writes = 0
        self.hits = 0
        self.at = 0
        self.after = False
        self.status: int | None = None

    def arm(self, at: int, *, after: bool, status: int | None) -> None:
        self.calls, self.at, self.after, self.status = 0, at, after, status

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cluster, name)

        async def call(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            self.writes += name in WRITES
            hit = self.calls == self.at
            self.hits += hit
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
        """Whether it serves as its spec is now."""
        for body in self.cache.of_kind(SHARDED_MODEL):
            if body["metadata"]["name"] == name:
                status = body.get("status", {})
                current = status.get("observedGeneration") == body["metadata"]["generation"]
                conditions = status.get("conditions", [])
                return current and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return False

    def objects(self, name: str) -> Exists:
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
    # More than one model needs, because of those that were deleted just now.
    nodes.add_lunar_lake(*["28Gi"] * NODES)


def model(name: str, stages: int) -> Manifest:
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "ShardedModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"volume": {"hostPath": {"path": "/srv/model"}}},
            "stages": {"count": stages},
            "scheduler": {"streams": 1, "maxContext": 512},
        },
    }


async def come_to_rest(operator: Operator, cluster: Faulty, name: str) -> None:
    """Reconcile, through deaths and errors, until it serves and nothing is written any more."""
    for _ in range(ROUNDS):
        before = cluster.writes
        try:
            await operator.once(name)
        except Died:
            operator.start()
            continue
        except OperatorError:
            continue
        if operator.ready(name) and cluster.writes == before:
            return
    raise AssertionError(f"{name} does not come to rest")


async def life(operator: Operator, cluster: Faulty, admin: Api, namespace: str, name: str) -> list[Exists]:
    """Make a model of one stage, cut it into two; returns what exists after each, and deletes it."""
    found = []
    for stages in (1, 2):
        admin.apply(model(name, stages), namespace=namespace)
        await come_to_rest(operator, cluster, name)
        found.append(operator.objects(name))
    admin.delete("shoal.dev/v1alpha1", "shardedmodels", name, namespace=namespace)
    return found


@pytest.mark.parametrize(
    ("every", "dies", "after"),
    [
        # Calls next to each other are of one sort: some still meet most sorts, with every kind of fault.
        pytest.param(9, True, False, id="some-deaths"),
        pytest.param(9, False, True, id="some-errors"),
        *(
            pytest.param(1, dies, after, id=f"all-{what}-{when}", marks=pytest.mark.slow)
            for dies, what in ((True, "deaths"), (False, "errors"))
            for after, when in ((False, "before"), (True, "after"))
        ),
    ],
)
async def test_a_fault_at_any_call_changes_nothing_in_the_end(
    office: None, real: KubernetesCluster, admin: Api, namespace: str, every: int, dies: bool, after: bool
) -> None:
    cluster = Faulty(real)
    operator = Operator(cluster, real, namespace)
    wanted = await life(operator, cluster, admin, namespace, "calm")
    assert wanted[0] != wanted[1]
    calls = cluster.calls
    assert calls > 30
    points = range(1, calls + 1, every)
    for turn, number in enumerate(points):
        status = None if dies else ERRORS[turn % len(ERRORS)]
        cluster.arm(number, after=after, status=status)
        found = await life(operator, cluster, admin, namespace, f"fault-{number}")
        assert found == wanted, f"call {number}, status {status}, after {after}"
    print(f"{cluster.hits} faults at {len(points)} of {calls} calls")  # noqa: T201 - the figure of a run with -s
    # Kubelets are quicker at times, and there is less to tell: the last calls of the first life need not come again.
    assert cluster.hits >= 0.8 * len(points)
