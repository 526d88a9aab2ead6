"""Leader election by a Lease, so that two operators never act at once.

The rules are those of Kubernetes' own components: a Lease is taken when it is free, or when its holder has not renewed
it for its duration by our own clock (clocks of machines differ, so only how long *we* saw it unchanged counts). Every
write carries the resource version that was read: of two that try at once one gets a conflict. A leader that cannot
renew within two thirds of the duration stops before another may start.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import LEASE, Object, Ref
from shoal_operator.errors import ApiConflict, ApiError, LeadershipLost

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sight:
    """The Lease as it was when we first saw it so, by our clock."""

    version: str
    since: float


class Leader:
    """One candidate. `acquire` returns when it leads; `hold` raises LeadershipLost when it does no more."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        identity: str,
        seconds: float,
        name: str = "shoal-operator",
        clock: Callable[[], float] | None = None,
        wall: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._cluster = cluster
        self._ref = Ref(LEASE, namespace, name)
        self._identity = identity
        self._seconds = seconds
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._wall = wall
        self._sight: _Sight | None = None
        self.leading = False

    async def acquire(self) -> None:
        """Wait until this candidate leads."""
        while not await self._attempt():  # noqa: ASYNC110 - only asking the API server tells
            await asyncio.sleep(self._seconds / 5)
        log.info("leading as %s", self._identity)

    async def hold(self) -> None:
        """Renew until that fails for too long; raises LeadershipLost."""
        renewed = self._clock()
        while True:
            await asyncio.sleep(self._seconds / 5)
            left = renewed + self._seconds * 2 / 3 - self._clock()
            try:
                async with asyncio.timeout(max(left, 0)):
                    held = await self.try_once()
            except (ApiError, TimeoutError) as error:
                held = None
                log.warning("the Lease was not renewed: %s", error)
            if held:
                renewed = self._clock()
            elif held is False or self._clock() >= renewed + self._seconds * 2 / 3:
                self.leading = False
                raise LeadershipLost(f"{self._identity} leads no more: the Lease {self._ref} was not renewed in time")

    async def release(self) -> None:
        """Give the Lease up, so that a successor need not wait for it to end."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = await self._cluster.get(self._ref)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._cluster.replace(lease)
        except ApiError as error:
            log.warning("the Lease was not given up: %s", error)

    async def try_once(self) -> bool:
        """Take or renew the Lease if that is allowed; whether this candidate leads now."""
        lease = await self._cluster.get(self._ref)
        now = self._clock()
        if lease is None:
            created = await self._cluster.create(self._lease(self._spec(None)))
            return self._took(created, now)
        spec = lease["spec"]
        version = lease["metadata"]["resourceVersion"]
        if self._sight is None or self._sight.version != version:
            self._sight = _Sight(version, now)
        holder = spec.get("holderIdentity")
        duration = float(spec.get("leaseDurationSeconds") or self._seconds)
        if holder and holder != self._identity and now < self._sight.since + duration:
            self.leading = False
            return False
        lease["spec"] = self._spec(spec)
        return self._took(await self._cluster.replace(lease), now)

    async def _attempt(self) -> bool:
        try:
            return await self.try_once()
        except ApiConflict:
            return False
        except ApiError as error:
            log.warning("the Lease cannot be had: %s", error)
            return False

    def _took(self, lease: Object, now: float) -> bool:
        self._sight = _Sight(lease["metadata"]["resourceVersion"], now)
        self.leading = True
        return True

    def _lease(self, spec: Object) -> Object:
        metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}

    def _spec(self, before: dict[str, Any] | None) -> Object:
        now = self._wall().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = before is not None and before.get("holderIdentity") == self._identity
        transitions = int((before or {}).get("leaseTransitions") or 0)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._seconds),
            "acquireTime": before["acquireTime"] if same and before and "acquireTime" in before else now,
            "renewTime": now,
            "leaseTransitions": transitions + (0 if same or before is None else 1),
        }
