"""What a lone user gets of the plan in force: asked of the router once, and kept in the status for as long as it holds.

The status itself remembers it: an operator that starts afresh asks nobody, and an idle one writes nothing.
"""

from __future__ import annotations

import datetime
from typing import Final

from shoal.measured import placement_of
from shoal.resource.status import MeasuredStatus
from shoal_operator.cluster.routers import Routers
from shoal_operator.desired.intent import Intent
from shoal_operator.nodes import timestamp
from shoal_operator.status.findings import Situation
from shoal_operator.status.pods import is_ready

SOONEST: Final = 10.0
LATEST: Final = 600.0


def look_again_for_figures(situation: Situation, now: datetime.datetime) -> float | None:
    """In how many seconds to ask; None when they are known, or nobody could tell. The longer a router has not told, the
    later: an older one never will."""
    router = situation.router
    if situation.measured is not None or situation.plan is None or router is None or not is_ready(router):
        return None
    since = next(each.get("lastTransitionTime") for each in router["status"]["conditions"] if each["type"] == "Ready")
    age = (now - timestamp(since)).total_seconds() if since else 0.0
    return min(max(age / 4, SOONEST), LATEST)


async def measured_of(routers: Routers, intent: Intent, situation: Situation) -> MeasuredStatus | None:
    """The figures of the plan in force; None when nothing is known of it."""
    if situation.plan is None:
        return None
    placement = placement_of(situation.plan)
    known = intent.model.status.measured if intent.model.status is not None else None
    if known is not None and known.placement == placement:
        return known
    if situation.router is None or not is_ready(situation.router):
        return None
    address = situation.router.get("status", {}).get("podIP")
    found = await routers.measured(address) if address else None
    if found is None or found.placement != placement:
        return None
    return MeasuredStatus(
        placement=placement,
        first_token_milliseconds=found.first_token_ms,
        tokens_per_second=found.tokens_per_second,
        prompt_tokens=found.prompt_tokens,
    )
