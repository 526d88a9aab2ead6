"""What the command line reads of a cluster, with the operator's own eyes: the same cache, view of nodes and plan.

The cluster's client is not part of the `cli` extra: who runs models on one machine does not need it.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.errors import PlanError, UsageError
from shoal.plan import ModelFacts, Plan
from shoal.resource import ShardedModel

if TYPE_CHECKING:
    from shoal_operator.cluster.interface import Cluster

T = TypeVar("T")


def with_cluster(work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Do something with the cluster of the kubeconfig. Raises UsageError when the client is not installed."""
    try:
        from shoal_operator.cluster.api import connect
    except ModuleNotFoundError as error:
        raise UsageError(f"reading a cluster needs {error.name}: pip install 'shoal[operator]'") from error

    async def run() -> T:
        async with await connect() as cluster:
            return await work(cluster)

    return asyncio.run(run())


async def plan_on(cluster: Cluster, model: ShardedModel, facts: ModelFacts) -> Plan:
    """The plan that the operator would go on with now, written nowhere. Raises PlanError when there is none."""
    from shoal_operator.cluster.cache import Cache
    from shoal_operator.cluster.kinds import CONFIG_MAP, NODE, POD
    from shoal_operator.desired.intent import Intent
    from shoal_operator.names import MANAGED_BY
    from shoal_operator.reconcile.observed import observe
    from shoal_operator.reconcile.planning import plan_for
    from shoal_operator.reconcile.volumes import volume_terms
    from shoal_operator.settings import OperatorSettings

    cache = Cache()
    for kind, labels in ((NODE, None), (POD, None), (CONFIG_MAP, MANAGED_BY)):
        cache.replace(kind, (await cluster.list(kind, labels=labels)).items)
    intent = Intent(await _as_it_is(cluster, model), OperatorSettings())
    observed = observe(cache, intent, None, datetime.datetime.now(datetime.UTC))
    planned = plan_for(intent, facts, observed, await volume_terms(cluster, intent))
    if planned.plan is None or planned.problem:
        raise PlanError(planned.problem)
    if planned.missing:
        raise PlanError("; ".join(planned.missing))
    return planned.plan


async def statuses(cluster: Cluster, namespace: str, name: str | None) -> list[dict[str, Any]]:
    """The ShardedModels of a namespace (empty: of all), or one of them. Raises UsageError when that is not there."""
    from shoal_operator.cluster.kinds import SHARDED_MODEL, Ref

    if name is None:
        return list((await cluster.list(SHARDED_MODEL, namespace)).items)
    found = await cluster.get(Ref(SHARDED_MODEL, namespace or "default", name))
    if found is None:
        raise UsageError(f"there is no ShardedModel {name} in namespace {namespace or 'default'}: see `shoal status`")
    return [found]


async def _as_it_is(cluster: Cluster, model: ShardedModel) -> ShardedModel:
    """The model with the uid of the one that the cluster has, so that its plan is known as its own."""
    from shoal_operator.cluster.kinds import SHARDED_MODEL, Ref

    namespace = model.metadata.namespace or "default"
    there = await cluster.get(Ref(SHARDED_MODEL, namespace, model.metadata.name))
    uid = there["metadata"]["uid"] if there is not None else None
    return model.model_copy(update={"metadata": model.metadata.model_copy(update={"namespace": namespace, "uid": uid})})
