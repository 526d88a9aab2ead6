"""What is known of the draft model, by the same rules as of the model itself. Pure.

A draft only makes answers quicker. So the router's first start waits for it, because a start anew costs answers; but a
draft that cannot be had, or that is made anew while the router runs, holds nobody up.
"""

from __future__ import annotations

from shoal_operator.cluster.kinds import DEPLOYMENT, Object, Ref
from shoal_operator.desired.draft import draft_intent
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.objects import KnownDraft
from shoal_operator.desired.router import router_name
from shoal_operator.reconcile.model import ModelState, model_state
from shoal_operator.reconcile.observed import Observed, draft_of
from shoal_operator.status.pods import Trouble


def draft_state(intent: Intent, observed: Observed) -> ModelState | None:
    """How the draft model is; None when none is wanted."""
    wanted = draft_intent(intent)
    return None if wanted is None else model_state(wanted, draft_of(observed, intent))


def known_draft(intent: Intent, observed: Observed) -> KnownDraft:
    """What of it decides what should exist."""
    wanted, state = draft_intent(intent), draft_state(intent, observed)
    if wanted is None or state is None:
        return KnownDraft()
    runs = observed.child(Ref(DEPLOYMENT, intent.namespace, router_name(intent.name))) is not None
    failed = state.trouble is not None and not state.trouble.waiting
    # The last draft serves on while another is made, if its files are where the router's pod looks for them.
    usable = state.current or state.origin == wanted.origin
    return KnownDraft(
        facts=state.facts if usable else None,
        key=state.key,
        origin=state.origin,
        sizes=state.sizes,
        settled=state.current or failed or runs,
    )


def draft_spent(intent: Intent, observed: Observed) -> tuple[Object, ...]:
    """Its Job that is done and has told nothing."""
    state = draft_state(intent, observed)
    return (state.spent,) if state is not None and state.spent is not None else ()


def draft_trouble(intent: Intent, observed: Observed) -> Trouble | None:
    """Why it is not there; None when it is, or is not wanted."""
    state = draft_state(intent, observed)
    return None if state is None or state.current else state.trouble
