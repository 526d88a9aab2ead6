"""Where `shoal gateway` finds routers in a cluster: by the Services of the ShardedModels, which it watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import ResourceError, ShoalError
from shoal.resource import sharded_model_from_object
from shoal.tasks import end_task

if TYPE_CHECKING:
    from shoal_operator.cluster.cache import Cache
    from shoal_operator.cluster.interface import Cluster

SYNC_SECONDS: Final = 30.0
_log = logging.getLogger(__name__)


class ClusterRoutes:
    """Routes to what the cache holds; made anew when it changes."""

    def __init__(self, cache: Cache, domain: str) -> None:
        self._cache = cache
        self._domain = domain
        self._table: Mapping[str, str] | None = None
        cache.on_change = self._changed

    def table(self) -> Mapping[str, str]:
        """See Routes."""
        from shoal_operator.cluster.kinds import SHARDED_MODEL

        if self._table is None:
            self._table = table_of(self._cache.of_kind(SHARDED_MODEL), self._domain)
        return self._table

    def _changed(self, _before: Any, _after: Any) -> None:
        self._table = None


def table_of(models: Iterable[Mapping[str, Any]], domain: str) -> dict[str, str]:
    """Served names -> Services. Of two ShardedModels that serve one name, the older has it."""
    table: dict[str, str] = {}
    for body in sorted(models, key=_age):
        metadata = body["metadata"]
        try:
            model = sharded_model_from_object(body)
        except ShoalError as error:
            _log.warning("a ShardedModel is left out", extra={"sharded_model": metadata["name"], "reason": str(error)})
            continue
        router = model.spec.router
        scheme = "https" if router.tls_secret_name is not None else "http"
        url = f"{scheme}://{model.metadata.name}.{metadata['namespace']}.svc.{domain}:{router.service.port}"
        for name in model.served_names:
            if table.setdefault(name, url) != url:
                _log.warning("a name is served twice", extra={"model": name, "used": table[name], "left_out": url})
    return table


def _age(body: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = body["metadata"]
    return metadata.get("creationTimestamp", ""), metadata.get("namespace", ""), metadata["name"]


@asynccontextmanager
async def watched(cluster: Cluster, cache: Cache, namespaces: tuple[str, ...]) -> AsyncIterator[None]:
    """Keep the cache in step with the ShardedModels of the namespaces (none given: of all) meanwhile.

    Raises ResourceError when they cannot be listed.
    """
    from shoal_operator.cluster.informer import Informer
    from shoal_operator.cluster.kinds import SHARDED_MODEL

    informers = [Informer(cluster, cache, SHARDED_MODEL, namespace) for namespace in namespaces or ("",)]
    async with AsyncExitStack() as stack:
        for informer in informers:
            task = asyncio.create_task(informer.run(), name=f"watch ShardedModels {informer.namespace}")
            stack.push_async_callback(end_task, task)
        try:
            async with asyncio.timeout(SYNC_SECONDS):
                await asyncio.gather(*(informer.synced.wait() for informer in informers))
        except TimeoutError:
            raise ResourceError(
                f"the ShardedModels could not be listed within {SYNC_SECONDS:g} s: "
                "give this account the right to list and watch them"
            ) from None
        yield
