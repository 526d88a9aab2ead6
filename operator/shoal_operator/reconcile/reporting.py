"""Status and events: the one place that writes them, and only when they say something new."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.resource import Condition
from shoal.resource.status import ConditionType
from shoal_operator import names
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import SHARDED_MODEL, Object
from shoal_operator.desired.intent import Intent
from shoal_operator.errors import ApiConflict, OperatorError
from shoal_operator.reconcile.model import ModelState
from shoal_operator.status.conditions import Finding, finding, merged
from shoal_operator.status.document import status_of
from shoal_operator.status.events import event_object, events_for
from shoal_operator.status.findings import Situation, findings_of
from shoal_operator.status.pods import short

log = logging.getLogger(__name__)


class Reporter:
    """Remembers which status was stored as what: a field that the API server drops is not written for ever."""

    def __init__(self, cluster: Cluster, cache: Cache, identity: str) -> None:
        self._cluster = cluster
        self._cache = cache
        self._identity = identity
        self._written: dict[str, tuple[str, str]] = {}

    async def report(
        self,
        intent: Intent,
        body: Object,
        situation: Situation,
        decisions: Sequence[str],
        state: ModelState,
        problem: OperatorError | None,
        now: datetime.datetime,
    ) -> None:
        """Write the status if it says something new, and the events of what changed."""
        findings = findings_of(situation)
        if problem is not None:
            findings = _with_problem(findings, problem)
        digest = state.facts.digest if state.facts is not None else None
        status = status_of(intent, situation, findings, digest or "", now)
        if not await self._write(body, status):
            return
        before = intent.model.status.conditions if intent.model.status else ()
        for kind, reason, message in events_for(before, findings, decisions):
            await self._say(event_object(intent, kind, reason, message, self._identity, now))

    async def refused(self, body: Object, reason: str, problem: str, now: datetime.datetime) -> None:
        """A spec that this version cannot read (the CRD may be another version's) or cannot honour: what runs is left
        as it is, nothing new is made, and the status says why."""
        before = [Condition.model_validate(each, strict=False) for each in body.get("status", {}).get("conditions", ())]
        message = short(problem)
        findings = [
            finding(ConditionType.PLANNED, False, reason, message),
            finding(ConditionType.READY, False, reason, message),
        ]
        generation = body["metadata"].get("generation", 0)
        conditions = merged(before, findings, generation, now)
        dumped = [each.model_dump(by_alias=True, mode="json", exclude_none=True) for each in conditions]
        await self._write(body, {**body.get("status", {}), "observedGeneration": generation, "conditions": dumped})

    async def _write(self, body: Object, status: dict[str, Any]) -> bool:
        metadata = body["metadata"]
        uid, current = metadata["uid"], body.get("status", {})
        wanted = names.digest_of(status)
        if current == status or self._written.get(uid) == (wanted, names.digest_of(current)):
            return False
        stored = await self._cluster.apply_status(
            {
                "apiVersion": SHARDED_MODEL.api_version,
                "kind": SHARDED_MODEL.kind,
                "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": uid},
                "status": status,
            }
        )
        self._written[uid] = (wanted, names.digest_of(stored.get("status", {})))
        self._cache.seen(stored)
        return True

    async def _say(self, event: Object) -> None:
        try:
            await self._cluster.create(event)
        except ApiConflict:
            log.debug("event %s was said already", event["metadata"]["name"])


def _with_problem(findings: Sequence[Finding], problem: OperatorError) -> tuple[Finding, ...]:
    """The findings when the API server refused something: Degraded says it, and so does Ready if it did not hold."""
    message = short(str(problem))
    changed = []
    for each in findings:
        if each.type is ConditionType.DEGRADED:
            changed.append(finding(ConditionType.DEGRADED, True, problem.reason, message))
        elif each.type is ConditionType.READY and each.status != "True":
            changed.append(replace(each, reason=problem.reason, message=message))
        else:
            changed.append(each)
    return tuple(changed)
