"""All children of a ShardedModel, in the order in which they are applied.

What is known decides what is wanted: without facts of the model only the Jobs (and their claim) that find them out;
with a plan also stages and router. Certificates are not here: they are made once, not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.plan.document import Plan
from shoal.plan.facts import ModelFacts
from shoal_operator.cluster.kinds import CHILDREN, Object, kind_of
from shoal_operator.desired.access import router_access
from shoal_operator.desired.disruption import stages_disruption_budget
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.model_job import model_job, model_key, sizes_job
from shoal_operator.desired.network import network_policies
from shoal_operator.desired.plan_config import addressed, facts_config_map, plan_config_map, sizes_config_map
from shoal_operator.desired.router import router_deployment, router_ingress, router_service
from shoal_operator.desired.stage import PlacedStage, stage_deployment, stages_headless_service
from shoal_operator.desired.store import store_claim, store_deployment, store_service


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out so far. `facts_key` and `origin` say what the facts were made from; `placed` and `standbys`
    belong to the plan. `hopeless`: by its `sizes` the model would fit nowhere, so it is not compiled yet.
    """

    facts: ModelFacts | None = None
    sizes: ModelFacts | None = None
    facts_key: str = ""
    origin: str = ""
    plan: Plan | None = None
    placed: tuple[PlacedStage, ...] = ()
    standbys: tuple[PlacedStage, ...] = ()
    cut: str = ""
    hopeless: bool = False


def desired_objects(intent: Intent, known: Known) -> list[Object]:
    """Every child that should exist now, apart from certificates."""
    objects: list[Object] = []
    from_source = intent.model.spec.model.source is not None
    if from_source:
        objects.append(store_claim(intent))
    # Once the facts are kept, the Job is history: it goes by its own time to live.
    if known.facts is None or known.facts_key != model_key(intent):
        if from_source and known.sizes is None:
            objects.append(sizes_job(intent))
        elif not known.hopeless:
            objects.append(model_job(intent, known.sizes))
        if known.sizes is not None:
            objects.append(sizes_config_map(intent, known.sizes, model_key(intent)))
    if known.facts is not None:
        objects.append(facts_config_map(intent, known.facts, known.facts_key, known.origin))
        if from_source:
            objects += [store_deployment(intent), store_service(intent)]
    objects += [
        *router_access(intent),
        *network_policies(intent),
        stages_headless_service(intent),
        router_service(intent),
    ]
    ingress = router_ingress(intent)
    if ingress is not None:
        objects.append(ingress)
    if known.facts is not None and known.plan is not None:
        objects.append(plan_config_map(intent, addressed(intent, known.plan, known.placed, known.standbys), known.cut))
        objects.append(stages_disruption_budget(intent))
        stages = (*known.placed, *known.standbys)
        objects += [stage_deployment(intent, known.facts, placed) for placed in stages if not placed.held]
        objects.append(router_deployment(intent, known.facts))
    return in_order(objects)


def in_order(objects: Sequence[Object]) -> list[Object]:
    """What a pod needs before the pod."""
    return sorted(objects, key=lambda obj: CHILDREN.index(kind_of(obj)))
