"""The draft model beside the router: a model of its own, made known like the first one, and the container that drafts.

For everything that makes a model known it is a ShardedModel of the same name with the draft in the model's place: the
same Jobs, the same store. It drafts in the router's pod, over the loopback: a draft's round trip is what speculation
hides nothing of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from shoal.plan.costs import Costs
from shoal.plan.document import Device
from shoal.plan.facts import ModelFacts, PlanSpec
from shoal.resource import ModelSpec, SpeculativeMode
from shoal_operator.cluster.kinds import Object
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.model_files import Root, model_files
from shoal_operator.desired.pod import container

DRAFT_ADDRESS: Final = "127.0.0.1:50061"
ROOT: Final = Root(volume="draft", path="/draft", pull="pull-draft")
CACHE: Final = "/draft-cache"


@dataclass(frozen=True, slots=True)
class Drafting:
    """What the router's pod has beside the router, and what the router is told of it."""

    options: tuple[str, ...] = ()
    containers: tuple[Object, ...] = ()
    init: tuple[Object, ...] = ()
    volumes: tuple[Object, ...] = ()


def draft_intent(intent: Intent) -> Intent | None:
    """The intent with the draft in the model's place; None when none is wanted."""
    speculative = intent.model.spec.scheduler.speculative
    draft = speculative.draft
    if draft is None or speculative.mode is SpeculativeMode.OFF:
        return None
    changes = {
        "model": ModelSpec(source=draft.source, volume=draft.volume),
        "precision": draft.precision,
        "group_size": None,
        "devices": (Device.CPU,),
    }
    spec = intent.model.spec.model_copy(update=changes)
    return replace(intent, model=intent.model.model_copy(update={"spec": spec}))


def needs_store(intent: Intent) -> bool:
    """Whether something is compiled from a source."""
    draft = draft_intent(intent)
    return any(each is not None and each.origin == "source" for each in (intent, draft))


def drafting(intent: Intent, facts: ModelFacts, draft: ModelFacts | None) -> Drafting:
    """The draft process; without facts of the draft model there is none, and text alone is drafted from."""
    wanted = draft_intent(intent)
    if wanted is None or draft is None:
        return Drafting()
    files = model_files(wanted, draft, (0, draft.shape.layers + 2), ROOT)
    context = min(intent.context_for(facts), draft.shape.max_context)
    streams = intent.model.spec.scheduler.streams
    costs = Costs(draft, PlanSpec(devices=(Device.CPU,), streams=streams, max_context=context))
    memory = str(costs.memory(Device.CPU, 0, costs.layers).total)
    command = [
        "python",
        "-m",
        "shoal_stage",
        "draft",
        f"--model={files.path}",
        f"--listen={DRAFT_ADDRESS}",
        f"--device={Device.CPU.value}",
        f"--streams={streams}",
        f"--max-context={context}",
        f"--cache-dir={CACHE}",
    ]
    # No probe: a kubelet does not reach the loopback, and a draft that is gone costs speed, not answers.
    process = container(
        "draft",
        intent.stage_image,
        command,
        intent,
        requests={"cpu": "500m", "memory": memory},
        limits={"memory": memory},
        mounts=(*files.mounts, {"name": "draft-cache", "mountPath": CACHE}),
    )
    return Drafting(
        options=(f"--draft-address={DRAFT_ADDRESS}",),
        containers=(process,),
        init=files.init,
        volumes=(*files.volumes, {"name": "draft-cache", "emptyDir": {}}),
    )
