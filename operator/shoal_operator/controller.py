"""The operator as a running thing: cache and watches, the queue and its workers, the Lease, and health.

Watches and cache run on every replica; workers run on the leader alone and end with its Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from shoal.resource import NodesFile, load_nodes
from shoal_operator.causes import Concern, concerned
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.informer import Informer, silence
from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import CHILDREN, NODE, POD, SHARDED_MODEL, Object, Ref, ref_of
from shoal_operator.cluster.routers import HttpRouters, Routers
from shoal_operator.errors import LeadershipLost, OperatorError
from shoal_operator.leader import Leader
from shoal_operator.lost import LostStages
from shoal_operator.metrics import Metrics
from shoal_operator.names import MANAGED_BY
from shoal_operator.queue import Key, WorkQueue
from shoal_operator.reconcile.reconciler import Reconciler
from shoal_operator.settings import OperatorSettings

SILENCE_SECONDS: Final = 420.0
"""A watch ends and begins anew every four minutes, and bookmarks come in between."""
UNDELIVERED_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 30.0
SYNC_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


class Controller:
    """Start with `run`; `saw` is told of every event of a ShardedModel."""

    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        metrics: Metrics | None = None,
        *,
        routers: Routers | None = None,
    ) -> None:
        self.cache = Cache()
        self.queue = WorkQueue()
        self.metrics = metrics or Metrics()
        self._cluster = cluster
        self._settings = settings
        self._leader = Leader(cluster, settings.namespace, settings.pod_name, settings.lease_seconds)
        self._nodes_file: NodesFile | None = load_nodes(settings.nodes_file) if settings.nodes_file else None
        routers = routers or HttpRouters()
        self._lost = LostStages(self.cache, routers.lost, self.queue.add)
        self._reconciler = Reconciler(
            cluster, self.cache, settings, self._nodes_file, routers=routers, lost=self._lost.of
        )
        self._waiting: set[Key] = set()
        self._undelivered: dict[Ref, tuple[int, float]] = {}
        self._failed: str = ""
        self.cache.on_change = self._on_change
        self._informers = self._make_informers()

    async def run(self) -> None:
        """Until cancelled. Raises LeadershipLost when another operator took over: the process then starts afresh."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run(), name=f"watch {informer.kind.plural}")
            tasks.create_task(self._work(), name="work")

    def saw(self, kind: str | None, body: Object) -> None:
        """A ShardedModel's event, as kopf delivers it."""
        ref = ref_of(body)
        held = self._undelivered.get(ref)
        if held is not None and _version(body) >= held[0]:
            del self._undelivered[ref]
        if kind == "DELETED":
            self.cache.gone(ref)
        else:
            self.cache.seen(body)

    def unhealthy(self, now: float) -> str | None:
        """Why the process should be started again; None when it is well."""
        if self._failed:
            return self._failed
        quiet = silence((each for each in self._informers if each.synced.is_set()), now)
        self.metrics.silence.set(quiet)
        if quiet > SILENCE_SECONDS:
            return f"a watch has been silent for {quiet:.0f} s"
        late = [ref for ref, (_, since) in self._undelivered.items() if now - since > UNDELIVERED_SECONDS]
        if late:
            return f"the watch of ShardedModels has not delivered {late[0]}"
        return None

    @property
    def ready(self) -> bool:
        """Whether every watch has its first list."""
        return all(informer.synced.is_set() for informer in self._informers)

    async def synced(self) -> None:
        """Wait until every watch has its first list."""
        async with asyncio.timeout(SYNC_SECONDS):
            await asyncio.gather(*(informer.synced.wait() for informer in self._informers))

    async def _work(self) -> None:
        await self.synced()
        await self.check_delivery()
        if not self._settings.leader_election:
            await self._lead()
            return
        await self._leader.acquire()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._leader.hold(), name="lease")
                tasks.create_task(self._lead(), name="lead")
        except* LeadershipLost as lost:
            self._failed = str(lost.exceptions[0])
            raise
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await self._leader.release()

    async def _lead(self) -> None:
        self.metrics.leading.set(1)
        self._add_everybody()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._settings.workers):
                    tasks.create_task(self._worker(), name=f"worker {number}")
                tasks.create_task(_every(self._settings.resync_seconds, self._resync), name="resync")
                tasks.create_task(_every(CHECK_SECONDS, self.check_delivery), name="delivery")
                tasks.create_task(self._lost.run(), name="lost stages")
        finally:
            self.metrics.leading.set(0)

    async def _worker(self) -> None:
        while True:
            key = await self.queue.take()
            self.metrics.queue.set(self.queue.length)
            with self.metrics.seconds.time():
                await self._once(key)

    async def _once(self, key: Key) -> None:
        where = {"namespace": key[0], "model": key[1]}
        try:
            outcome = await self._reconciler.reconcile(key)
        except OperatorError as error:
            wait = self.queue.failed(key, error)
            self.metrics.reconciles.labels(type(error).__name__).inc()
            log.warning("%s/%s: %s; again in %.1f s", *key, error, wait, extra=where)
        except Exception as error:
            wait = self.queue.failed(key, error)
            self.metrics.reconciles.labels("defect").inc()
            log.exception("%s/%s: a defect of the operator; again in %.1f s", *key, wait, extra=where)
        else:
            (self._waiting.add if outcome.wants_room else self._waiting.discard)(key)
            self.queue.done(key, outcome.look_again)
            self.metrics.reconciles.labels("done").inc()

    async def _resync(self) -> None:
        """The slow timer: every ShardedModel is looked at again, whatever the watches said."""
        self._add_everybody()
        ready = Counter(_ready(body) for body in self.cache.of_kind(SHARDED_MODEL))
        for status in ("True", "False", "Unknown"):
            self.metrics.models.labels(status).set(ready[status])

    async def check_delivery(self) -> None:
        """Compare what the watch of ShardedModels delivered with what there is; what it missed is made up for.

        A watch may be alive and deaf (kopf#1276): nothing but a comparison shows it.
        """
        now = asyncio.get_running_loop().time()
        for namespace in self._settings.watch_namespaces or ("",):
            listing = await self._cluster.list(SHARDED_MODEL, namespace)
            for body in listing.items:
                ref, version = ref_of(body), _version(body)
                seen = self.cache.get(ref)
                if seen is None or _version(seen) < version:
                    self._undelivered.setdefault(ref, (version, now))
            here = {ref_of(body) for body in listing.items}
            for ref in [ref for ref in self._undelivered if ref not in here and namespace in ("", ref.namespace)]:
                del self._undelivered[ref]
            self.cache.replace(SHARDED_MODEL, listing.items, namespace)

    def _on_change(self, before: Object | None, after: Object | None) -> None:
        key, concern = concerned(before, after)
        if key is not None:
            self.queue.add(key)
        if concern is Concern.EVERYBODY:
            self._add_everybody()
        elif concern is Concern.WAITING:
            for waiting in self._waiting:
                self.queue.add(waiting)

    def _add_everybody(self) -> None:
        for body in self.cache.of_kind(SHARDED_MODEL):
            ref = ref_of(body)
            self.queue.add((ref.namespace, ref.name))

    def _make_informers(self) -> list[Informer]:
        kinds = [(POD, None), *((kind, MANAGED_BY) for kind in CHILDREN)]
        informers = [
            Informer(self._cluster, self.cache, kind, namespace, labels)
            for namespace in self._settings.watch_namespaces or ("",)
            for kind, labels in kinds
        ]
        if self._nodes_file is None:
            informers.insert(0, Informer(self._cluster, self.cache, NODE))
        return informers


async def _every(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except OperatorError as error:
            log.warning("%s; again in %.0f s", error, seconds)


def _version(body: Object) -> int:
    text = str(body["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdecimal() else 0


def _ready(body: Object) -> str:
    for condition in body.get("status", {}).get("conditions", ()):
        if condition["type"] == "Ready":
            return str(condition["status"])
    return "Unknown"
