"""Everything that one reconcile looks at, gathered once from the cache, so that every decision sees the same."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pydantic import ValidationError

from shoal.plan.document import Plan
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_from_json
from shoal.resource import NodesFile
from shoal_operator import names
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NODE, POD, Object, Ref, kind_of, ref_of
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.model_job import REPORT
from shoal_operator.desired.plan_config import DRAFT, FACTS_KEY, PLAN_KEY, facts_name, plan_name, sizes_name
from shoal_operator.nodes import NodeView, nodes_of_file, view_nodes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """One ShardedModel's part of the cluster at one time. `lost`: names of stages that are gone, as its router says."""

    children: Mapping[Ref, Object]
    pods: tuple[Object, ...]
    nodes: tuple[NodeView, ...]
    plan: Plan | None
    cut: str
    facts: ModelFacts | None
    facts_key: str
    origin: str
    now: datetime.datetime
    sizes: ModelFacts | None = None
    sizes_key: str = ""
    lost: frozenset[str] = frozenset()

    def child(self, ref: Ref) -> Object | None:
        """A child by its reference."""
        return self.children.get(ref)

    def pods_of(self, role: str) -> list[Object]:
        """Pods of one role, those that are ending last."""
        mine = [pod for pod in self.pods if pod["metadata"]["labels"].get(names.ROLE_LABEL) == role]
        return sorted(mine, key=lambda pod: bool(pod["metadata"].get("deletionTimestamp")))

    def pod_of_stage(self, name: str) -> Object | None:
        """The pod of a stage's Deployment: of several the one that is not ending and is the newest."""
        mine = [pod for pod in self.pods if pod["metadata"]["labels"].get(names.NAME_LABEL) == name]
        alive = [pod for pod in mine if not pod["metadata"].get("deletionTimestamp")]
        return max(alive or mine, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), default=None)

    def reported(self, job: Object) -> ModelFacts | None:
        """What the Job's pod said of the model when it was done."""
        uid = job["metadata"]["uid"]
        for pod in self.pods:
            if not any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ())):
                continue
            for status in pod.get("status", {}).get("containerStatuses", ()):
                ended = status.get("state", {}).get("terminated")
                if status["name"] == REPORT and ended and ended.get("exitCode") == 0:
                    return _facts(ended.get("message", ""), ref_of(pod))
        return None


def observe(
    cache: Cache,
    intent: Intent,
    nodes_file: NodesFile | None,
    now: datetime.datetime,
    nodes: tuple[NodeView, ...] | None = None,
) -> Observed:
    """Gather; with `nodes` only what has changed of the children since they were looked at."""
    objects = cache.children(intent.namespace, intent.name)
    mine = {ref_of(obj): obj for obj in objects if kind_of(obj) != POD and _owned(obj, intent)}
    pods = tuple(obj for obj in objects if kind_of(obj) == POD)
    plan, cut = _plan(mine.get(Ref(CONFIG_MAP, intent.namespace, plan_name(intent.name))))
    kept = mine.get(Ref(CONFIG_MAP, intent.namespace, facts_name(intent.name)))
    facts, key = _known(kept)
    origin = kept["metadata"]["annotations"].get(names.ORIGIN_ANNOTATION, "") if kept is not None else ""
    sizes, sizes_key = _known(mine.get(Ref(CONFIG_MAP, intent.namespace, sizes_name(intent.name))))
    if nodes is None:
        nodes = _nodes(cache, intent, nodes_file)
    return Observed(mine, pods, nodes, plan, cut, facts, key, origin, now, sizes, sizes_key)


def draft_of(observed: Observed, intent: Intent) -> Observed:
    """The same with what is known of the draft model in the model's place."""
    kept = observed.child(Ref(CONFIG_MAP, intent.namespace, facts_name(intent.name, DRAFT)))
    facts, key = _known(kept)
    sizes, sizes_key = _known(observed.child(Ref(CONFIG_MAP, intent.namespace, sizes_name(intent.name, DRAFT))))
    origin = kept["metadata"]["annotations"].get(names.ORIGIN_ANNOTATION, "") if kept is not None else ""
    return replace(observed, facts=facts, facts_key=key, origin=origin, sizes=sizes, sizes_key=sizes_key)


def _nodes(cache: Cache, intent: Intent, nodes_file: NodesFile | None) -> tuple[NodeView, ...]:
    others = other_plans(cache, intent)
    if nodes_file is not None:
        return nodes_of_file(nodes_file, others)
    return view_nodes(cache.of_kind(NODE), cache.of_kind(POD), others)


def other_plans(cache: Cache, intent: Intent) -> list[Plan]:
    """The plans of all other ShardedModels: the memory that they have taken."""
    mine = Ref(CONFIG_MAP, intent.namespace, plan_name(intent.name))
    found = []
    for obj in cache.of_kind(CONFIG_MAP):
        ref = ref_of(obj)
        owner = names.model_of(obj)
        if owner is None or ref == mine or ref.name != plan_name(owner[1]):
            continue
        plan, _ = _plan(obj)
        if plan is not None:
            found.append(plan)
    return found


def device_resource(children: Mapping[Ref, Object], namespace: str, stage: str, known: tuple[str, ...]) -> str:
    """The device resource that a stage's Deployment asks for already."""
    deployment = children.get(Ref(DEPLOYMENT, namespace, stage))
    if deployment is None:
        return ""
    (server, *_) = deployment["spec"]["template"]["spec"]["containers"]
    requests = server.get("resources", {}).get("requests", {})
    return next((resource for resource in known if resource in requests), "")


def _owned(obj: Object, intent: Intent) -> bool:
    """Whether this ShardedModel owns it; one of the same name that was deleted may have left children for a moment."""
    uid = intent.model.metadata.uid
    return any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences", ()))


def _plan(obj: Object | None) -> tuple[Plan | None, str]:
    if obj is None:
        return None, ""
    try:
        plan = _parsed(obj["data"][PLAN_KEY])
    except (KeyError, TypeError, ValidationError) as error:
        log.warning("%s holds no plan that can be used, a new one is made: %s", ref_of(obj), error)
        return None, ""
    return plan, obj["metadata"].get("annotations", {}).get(names.CUT_ANNOTATION, "")


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Plan:
    """Every reconcile reads the plans of all other models, and they hardly ever change."""
    return Plan.model_validate_json(text)


def _known(obj: Object | None) -> tuple[ModelFacts | None, str]:
    if obj is None:
        return None, ""
    facts = _facts(obj.get("data", {}).get(FACTS_KEY, ""), ref_of(obj))
    key = obj["metadata"].get("annotations", {}).get(names.KEY_ANNOTATION, "")
    return (facts, key) if facts is not None else (None, "")


def _facts(text: str, where: Ref) -> ModelFacts | None:
    try:
        return facts_from_json(text)
    except ValueError as error:
        log.warning("%s says nothing of the model that can be read: %s", where, error)
        return None
