"""Once through for one ShardedModel: gather, plan, apply, say how it is. Called for every cause, always the same way.

Nothing is remembered between two calls but what spares writes. Planning and the write of the plan happen under one
lock: a plan is also the claim on memory that the next model's plan must see.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shoal.errors import ManifestError
from shoal.resource import NodesFile, sharded_model_from_object
from shoal_operator import names
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import DEPLOYMENT, SHARDED_MODEL, Object, Ref, ref_of
from shoal_operator.cluster.routers import HttpRouters, Routers
from shoal_operator.desired.draft import draft_intent
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.model_job import COMPILER, model_job_name, sizes_job_name
from shoal_operator.desired.objects import Known, desired_objects
from shoal_operator.desired.plan_config import addressed, plan_config_map
from shoal_operator.desired.router import router_name
from shoal_operator.desired.stage import PlacedStage
from shoal_operator.errors import ApiError, OperatorError
from shoal_operator.nodes import NodeView
from shoal_operator.queue import Key
from shoal_operator.reconcile.applying import Applier, unwanted_children
from shoal_operator.reconcile.certificates import keep_certificates
from shoal_operator.reconcile.delivering import Delivery
from shoal_operator.reconcile.draft import draft_spent, draft_trouble, known_draft
from shoal_operator.reconcile.measuring import look_again_for_figures, measured_of
from shoal_operator.reconcile.model import ModelState, model_state, with_progress
from shoal_operator.reconcile.observed import Observed, observe
from shoal_operator.reconcile.planning import Planned, cut_of, place, place_standbys, plan_for
from shoal_operator.reconcile.reporting import Reporter
from shoal_operator.reconcile.rolling import held_refs, one_at_a_time
from shoal_operator.reconcile.unsupported import unsupported
from shoal_operator.reconcile.volumes import Terms, volume_terms
from shoal_operator.settings import OperatorSettings
from shoal_operator.status.findings import Situation, StageState

log = logging.getLogger(__name__)
DAY: Final = 24 * 3600.0
PROGRESS_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """When to look again even if nothing happens, and whether the model waits for room on some node."""

    look_again: float | None
    wants_room: bool


class Reconciler:
    """Reconciles ShardedModels; may run for several at the same time, never twice for one."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        settings: OperatorSettings,
        nodes_file: NodesFile | None = None,
        routers: Routers | None = None,
        wall: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        lost: Callable[[Key], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._settings = settings
        self._nodes_file = nodes_file
        self._routers = routers or HttpRouters()
        self._wall = wall
        self._lost = lost
        self._applier = Applier(cluster, cache)
        self._delivery = Delivery(cluster, cache)
        self._reporter = Reporter(cluster, cache, settings.pod_name)
        self._planning = asyncio.Lock()

    async def reconcile(self, key: Key) -> Outcome:
        """Bring one ShardedModel's part of the cluster to what it should be. Raises OperatorError."""
        body = self._cache.get(Ref(SHARDED_MODEL, *key))
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._delivery.forget(key)
            return Outcome(None, wants_room=False)
        now = self._wall()
        try:
            model = sharded_model_from_object(body)
        except ManifestError as error:
            await self._reporter.refused(body, "InvalidSpec", str(error), now)
            return Outcome(None, wants_room=False)
        if problems := unsupported(model.spec):
            await self._reporter.refused(body, "Unsupported", "; ".join(problems), now)
            return Outcome(None, wants_room=False)
        intent = Intent(model, self._settings)
        decided: tuple[ModelState, Planned] | None = None
        problem: OperatorError | None = None
        try:
            decided = await self._act(intent, now)
        except OperatorError as error:
            if not error.for_people:
                raise
            problem = error
        observed = self._observe(intent, now)
        state, planned = decided or (model_state(intent, observed), Planned(observed.plan))
        state = await self._progress(state)
        situation = self._situation(intent, observed, state, planned)
        situation = replace(situation, measured=await measured_of(self._routers, intent, situation))
        await self._reporter.report(intent, body, situation, planned.moved, state, problem, now)
        if problem is not None:
            raise problem
        wants_room = bool(planned.problem or planned.missing or planned.staying)
        soon = PROGRESS_SECONDS if state.compiling is not None else DAY
        figures = look_again_for_figures(situation, now)
        return Outcome(min(soon, planned.look_again or DAY, figures or DAY), wants_room)

    def _observe(self, intent: Intent, now: datetime.datetime, nodes: tuple[NodeView, ...] | None = None) -> Observed:
        observed = observe(self._cache, intent, self._nodes_file, now, nodes)
        lost = self._lost((intent.namespace, intent.name))
        return replace(observed, lost=frozenset(names.stage_of(address) for address in lost))

    async def _progress(self, state: ModelState) -> ModelState:
        """What the compiler says; it is worth a look, not a failed reconcile."""
        if state.compiling is None:
            return state
        try:
            return with_progress(state, await self._cluster.last_line(state.compiling, COMPILER))
        except ApiError as error:
            log.debug("the compiler's progress cannot be read: %s", error)
            return state

    async def _act(self, intent: Intent, now: datetime.datetime) -> tuple[ModelState, Planned]:
        terms = await volume_terms(self._cluster, intent)
        async with self._planning:
            observed = self._observe(intent, now)
            state = model_state(intent, observed)
            planned, known, frozen = self._decide(intent, observed, state, terms)
            claim: Object | None = None
            if known.plan is not None:
                claim = plan_config_map(intent, addressed(intent, known.plan, known.placed, known.standbys), known.cut)
                await self._applier.apply([claim], observed.children)
        if known.placed:
            await keep_certificates(intent, observed, self._applier)
        observed = self._observe(intent, now, observed.nodes)
        wanted = desired_objects(intent, known)
        await self._applier.apply(wanted, observed.children)
        if claim is not None:
            stages = {each.name for each in known.placed}
            unread = await self._delivery.deliver((intent.namespace, intent.name), observed, claim, stages)
            if unread is not None:
                planned = replace(planned, look_again=min(unread, planned.look_again or DAY))
        of = [each for each in (intent, draft_intent(intent)) if each is not None]
        jobs = {name(each) for each in of for name in (sizes_job_name, model_job_name)}

        def keep(obj: Mapping[str, Any]) -> bool:
            role = obj["metadata"]["labels"].get(names.ROLE_LABEL)
            return obj["metadata"]["name"] in jobs or (frozen and role in (names.STAGE, names.ROUTER, names.STORE))

        stay = {ref_of(obj) for obj in wanted} | held_refs(intent, known.placed)
        unwanted = unwanted_children(observed.children, stay, keep)
        await self._applier.remove([*unwanted, *([state.spent] if state.spent else ()), *draft_spent(intent, observed)])
        return state, planned

    def _decide(
        self, intent: Intent, observed: Observed, state: ModelState, terms: Terms | None
    ) -> tuple[Planned, Known, bool]:
        """The plan, what is known because of it, and whether stages and router are to be left as they are."""
        base = Known(state.facts, state.sizes, state.key, state.origin, draft=known_draft(intent, observed))
        if state.facts is None:
            if state.sizes is None:
                return Planned(None), base, False
            # Nobody waits for hours of compiling to hear that it does not fit.
            outlook = plan_for(intent, state.sizes, observed, terms)
            known = replace(base, hopeless=bool(outlook.problem))
            return Planned(None, problem=outlook.problem, look_again=outlook.look_again), known, False
        if not state.current and not (state.origin == intent.origin == "source"):
            # The last model goes on being planned only while the next one is made in the same store.
            return Planned(observed.plan), base, True
        planned = plan_for(intent, state.facts, observed, terms)
        if intent.model.spec.replicas == 0:
            return planned, base, False
        if planned.plan is None or planned.problem:
            # The last plan goes on where there is one that cannot be made anew; one that was given back does not.
            return planned, base, planned.plan is not None
        placed = one_at_a_time(intent, state.facts, planned.plan, place(intent, planned.plan, observed), observed)
        standbys = place_standbys(intent, planned.plan, observed)
        known = replace(base, plan=planned.plan, placed=placed, standbys=standbys, cut=cut_of(intent))
        return planned, known, False

    def _situation(self, intent: Intent, observed: Observed, state: ModelState, planned: Planned) -> Situation:
        views = {view.name: view for view in observed.nodes}
        plan = planned.plan
        placed: tuple[PlacedStage, ...] = ()
        if plan is not None and intent.model.spec.replicas:
            placed = place(intent, plan, observed)
            if state.facts is not None:
                placed = one_at_a_time(intent, state.facts, plan, placed, observed)
        standbys = place_standbys(intent, plan, observed) if placed and plan is not None else ()

        def states(of: Sequence[PlacedStage]) -> tuple[StageState, ...]:
            return tuple(
                StageState(
                    each,
                    observed.pod_of_stage(each.name),
                    observed.child(Ref(DEPLOYMENT, intent.namespace, each.name)),
                    views.get(each.stage.node),
                    gone=each.name in observed.lost,
                )
                for each in of
            )

        routers = observed.pods_of(names.ROUTER)
        return Situation(
            replicas=intent.model.spec.replicas,
            model_known=state.facts is not None,
            model_current=state.current,
            model_trouble=state.trouble,
            plan=plan,
            plan_problem=planned.problem,
            missing=planned.missing,
            moved=planned.moved,
            stages=states(placed),
            standbys=states(standbys),
            short_of=planned.short_of if placed else "",
            router=routers[0] if routers else None,
            router_deployment=_deployment(observed, intent),
            router_needs=_router_needs(intent),
            draft=draft_trouble(intent, observed),
            leaving=planned.leaving if placed else (),
            staying=planned.staying if placed else (),
        )


def _deployment(observed: Observed, intent: Intent) -> Object | None:
    return observed.child(Ref(DEPLOYMENT, intent.namespace, router_name(intent.name)))


def _router_needs(intent: Intent) -> str:
    secret = intent.model.spec.router.api_keys_secret_ref
    return f"Secret {secret.name} with entry {secret.key} (spec.router.apiKeysSecretRef)" if secret is not None else ""
