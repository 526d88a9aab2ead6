"""Having the router's kubelet bring it the plan at once.

The router reads the plan from a mounted ConfigMap, and a kubelet looks for changes of mounted ConfigMaps when it syncs
the pod: every minute or so, which would be the longest part of a recovery. A change of the pod itself makes it sync at
once, so the router's pod carries the digest of the plan that it should have.
"""

from __future__ import annotations

import logging

from shoal_operator import names
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import Object, ref_of
from shoal_operator.errors import ApiConflict, ApiNotFound
from shoal_operator.reconcile.observed import Observed

log = logging.getLogger(__name__)


async def deliver_plan(cluster: Cluster, cache: Cache, observed: Observed, plan: Object) -> None:
    """Name the plan on every pod of the router that does not name it yet."""
    digest = plan["metadata"]["annotations"][names.HASH_ANNOTATION]
    for pod in observed.pods_of(names.ROUTER):
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") or metadata.get("annotations", {}).get(names.PLAN_ANNOTATION) == digest:
            continue
        try:
            stored = await cluster.annotate(ref_of(pod), metadata["uid"], {names.PLAN_ANNOTATION: digest})
        except (ApiConflict, ApiNotFound):
            continue  # It has just gone; the next one starts with the plan.
        cache.seen(stored)
        log.info("%s is to read plan %s", ref_of(pod), digest)
