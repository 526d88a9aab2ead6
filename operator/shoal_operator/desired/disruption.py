"""A PodDisruptionBudget: `kubectl drain` takes one stage at a time, so that a chain is never lost twice at once."""

from __future__ import annotations

from shoal_operator import names
from shoal_operator.cluster.kinds import DISRUPTION_BUDGET, Object
from shoal_operator.desired.intent import Intent


def stages_disruption_budget(intent: Intent) -> Object:
    """One stage of the model at a time. A pod that is not ready may always be evicted: it protects nothing."""
    return intent.owned(
        DISRUPTION_BUDGET,
        names.stages_service(intent.name),
        names.STAGE,
        {
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": names.selector(intent.name, names.STAGE)},
            }
        },
    )
