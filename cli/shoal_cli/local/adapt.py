"""A ShardedModel as it applies to one machine: what belongs to a cluster is left out, and options override the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.errors import PlanError, UsageError
from shoal.plan import ModelFacts, Plan, make_plan
from shoal.plan.document import Device
from shoal.plan.standby import with_standbys
from shoal.resource import (
    ComputeResources,
    Execution,
    ExecutionMode,
    Images,
    KvPrecision,
    Placement,
    Recovery,
    Service,
    ShardedModel,
    Stages,
    WhenInUse,
)
from shoal.resource.planning import plan_spec_of
from shoal_cli.local.machine import Machine, as_nodes
from shoal_cli.ports import is_loopback


def for_this_machine(
    model: ShardedModel, *, stages: int | None = None, exact: bool = False, devices: Sequence[Device] = ()
) -> ShardedModel:
    """The ShardedModel with the options applied: no named nodes; standbys stay.

    Raises UsageError when it asks for no pipeline at all, or for fewer layers than stages in a manual cut.
    """
    spec = model.spec
    if spec.replicas == 0:
        raise UsageError("spec.replicas is 0: there is nothing to run; set it to 1")
    cut = Stages(count=stages) if stages is not None else spec.stages
    cut = cut.model_copy(update={"manual": tuple(one.model_copy(update={"node": None}) for one in cut.manual)})
    changes: dict[str, object] = {
        "stages": cut,
        "placement": Placement(
            max_memory_fraction=spec.placement.max_memory_fraction, spare_pods=spec.placement.spare_pods
        ),
    }
    if devices:
        changes["devices"] = tuple(devices)
    if exact:
        changes["execution"] = Execution(mode=ExecutionMode.EXACT)
        changes["scheduler"] = spec.scheduler.model_copy(update={"kv_precision": KvPrecision.AUTO})
    return model.model_copy(update={"spec": spec.model_copy(update=changes)})


def check_exposure(model: ShardedModel, host: str) -> None:
    """Raises UsageError when the API would be open to others although the ShardedModel asks for keys."""
    if model.spec.router.api_keys_secret_ref is not None and not is_loopback(host):
        raise UsageError(
            "router.apiKeysSecretRef asks for API keys, which only a cluster holds: leave out --host, so that only "
            "this machine reaches the API, or take the field out"
        )


def without_effect(model: ShardedModel) -> list[str]:
    """One line to the user for each reason why something that the ShardedModel asks for does not happen here."""
    cluster = cluster_only(model)
    return [f"for a cluster only, and left out here: {', '.join(cluster)}"] if cluster else []


def cluster_only(model: ShardedModel) -> list[str]:
    """What of the ShardedModel has no effect on one machine."""
    spec = model.spec
    placement, router = spec.placement, spec.router
    fields = {
        "placement.nodeSelector": bool(placement.node_selector),
        "placement.tolerations": bool(placement.tolerations),
        "placement.nodeLimits": bool(placement.node_limits),
        "placement.priorityClassName": placement.priority_class_name is not None,
        "placement.whenInUse": placement.when_in_use is not WhenInUse.IGNORE,
        "nodes of stages.manual": any(stage.node is not None for stage in spec.stages.manual),
        "recovery.replanAfterSeconds": spec.recovery.replan_after_seconds != Recovery().replan_after_seconds,
        "recovery.freeAfterSeconds": spec.recovery.free_after_seconds is not None,
        "router.service (all but port)": router.service != Service(port=router.service.port),
        "router.ingress": router.ingress is not None,
        "router.apiKeysSecretRef": router.api_keys_secret_ref is not None,
        "router.requestsPerKey": router.requests_per_key is not None,
        "router.requestsPerMinute": router.requests_per_minute is not None,
        "router.tlsSecretName": router.tls_secret_name is not None,
        "router.resources": router.resources != ComputeResources(),
        "image": spec.image != Images(),
    }
    return [name for name, ignored in fields.items() if ignored]


def parts_wanted(model: ShardedModel) -> int:
    """Into how many nodes this machine is to be divided: one for each stage of each pipeline, one for each standby."""
    return model.spec.replicas * stages_wanted(model) + model.spec.placement.spare_pods


def stages_wanted(model: ShardedModel) -> int:
    """How many stages of a pipeline are asked for."""
    return model.spec.stages.count or len(model.spec.stages.manual) or 1


def local_plan(model: ShardedModel, facts: ModelFacts, machine: Machine) -> Plan:
    """Stages and standbys on this machine; no standbys where they would leave the stages too little memory.

    Raises PlanError when the stages alone do not fit. The standbys' places are not there for more stages: what was not
    asked for by number is one stage, as without them.
    """
    nodes = as_nodes(machine, parts_wanted(model))
    wanted = plan_spec_of(model.spec)
    if not wanted.spare_nodes:
        return make_plan(facts, nodes, wanted)
    if not wanted.manual:
        wanted = replace(wanted, stage_count=stages_wanted(model))
    try:
        return with_standbys(make_plan(facts, nodes, wanted), facts, nodes, wanted)
    except PlanError:
        alone = as_nodes(machine, parts_wanted(model) - wanted.spare_nodes)
        return make_plan(facts, alone, replace(wanted, spare_nodes=0))


def missing_standbys(model: ShardedModel, plan: Plan) -> str:
    """What there is no room for on this machine, in a line; empty when there is."""
    asked, found = model.spec.placement.spare_pods, len(plan.standbys)
    if found >= asked:
        return ""
    return (
        f"placement.sparePods asks for {asked}, this machine has memory for {found}: "
        "a stage without a standby is started again when it is lost"
    )
