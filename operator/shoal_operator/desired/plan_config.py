"""The plan as a ConfigMap, which the router watches, and the model's facts as another.

Both are the operator's memory as well: a plan is sticky because the last one is read from here, and the sizes of a
compiled model outlive the pod that reported them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shoal.plan.document import Plan, Standby
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json
from shoal_operator import names
from shoal_operator.cluster.kinds import CONFIG_MAP, Object
from shoal_operator.desired.intent import Intent, annotated
from shoal_operator.desired.stage import PlacedStage

PLAN_KEY: Final = "plan.json"
FACTS_KEY: Final = "facts.json"


def plan_name(model: str) -> str:
    """The plan's ConfigMap."""
    return f"{model}-plan"


def facts_name(model: str) -> str:
    """The facts' ConfigMap."""
    return f"{model}-facts"


def sizes_name(model: str) -> str:
    """The ConfigMap of a source's sizes."""
    return f"{model}-sizes"


def addressed(intent: Intent, plan: Plan, placed: Sequence[PlacedStage], standbys: Sequence[PlacedStage] = ()) -> Plan:
    """The plan with the address of each stage."""
    hosts = {(each.pipeline, each.stage.index): each.name for each in placed}
    domain = intent.settings.cluster_domain

    def address(pipeline: int, stage: int) -> str:
        return f"{names.stage_host(intent.name, intent.namespace, hosts[pipeline, stage], domain)}:{names.STAGE_PORT}"

    pipelines = tuple(
        pipeline.model_copy(
            update={
                "stages": tuple(
                    stage.model_copy(update={"address": address(pipeline.index, stage.index)})
                    for stage in pipeline.stages
                )
            }
        )
        for pipeline in plan.pipelines
    )
    return plan.model_copy(update={"pipelines": pipelines, "standbys": _addressed_standbys(intent, plan, standbys)})


def _addressed_standbys(intent: Intent, plan: Plan, standbys: Sequence[PlacedStage]) -> tuple[Standby, ...]:
    domain = intent.settings.cluster_domain
    return tuple(
        standby.model_copy(
            update={
                "stage": standby.stage.model_copy(
                    update={
                        "address": f"{names.stage_host(intent.name, intent.namespace, placed.name, domain)}"
                        f":{names.STAGE_PORT}"
                    }
                )
            }
        )
        for standby, placed in zip(plan.standbys, standbys, strict=True)
    )


def plan_config_map(intent: Intent, plan: Plan, cut: str) -> Object:
    """plan.json, the same document that a local run has, and the name of the cut that it was made for."""
    # A plan without standbys is the document that it was before there were any.
    text = plan.model_dump_json(by_alias=True, indent=1, exclude=None if plan.standbys else {"standbys"})
    obj = intent.owned(CONFIG_MAP, plan_name(intent.name), names.ROUTER, {"data": {PLAN_KEY: text}})
    return annotated(obj, {names.CUT_ANNOTATION: cut})


def sizes_config_map(intent: Intent, sizes: ModelFacts, key: str) -> Object:
    """The sizes of the source that is being compiled, and the key of what it is made from."""
    data = {"data": {FACTS_KEY: facts_to_json(sizes)}}
    return annotated(
        intent.owned(CONFIG_MAP, sizes_name(intent.name), names.COMPILE, data), {names.KEY_ANNOTATION: key}
    )


def facts_config_map(intent: Intent, facts: ModelFacts, key: str, origin: str) -> Object:
    """The facts of the model that is available, the key of what it was made from, and where it lies."""
    obj = intent.owned(
        CONFIG_MAP,
        facts_name(intent.name),
        names.COMPILE,
        {"data": {FACTS_KEY: facts_to_json(facts)}},
    )
    return annotated(obj, {names.KEY_ANNOTATION: key, names.ORIGIN_ANNOTATION: origin})
