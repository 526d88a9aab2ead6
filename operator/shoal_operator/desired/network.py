"""Who may talk to whom: stages hear the router and each other, the store hears those that pull from it.

Stages hold a model and run what they are sent; nobody else of the cluster has business with them. The router's own
port stays open: its Service decides who calls.
"""

from __future__ import annotations

from shoal_operator import names
from shoal_operator.cluster.kinds import NETWORK_POLICY, Object
from shoal_operator.desired.draft import needs_store
from shoal_operator.desired.intent import Intent


def network_policies(intent: Intent) -> tuple[Object, ...]:
    """A policy for the stages, and one for the store when there is a source."""
    stages = _policy(intent, names.STAGE, (names.ROUTER, names.STAGE), names.STAGE_PORT)
    if not needs_store(intent):
        return (stages,)
    return (stages, _policy(intent, names.STORE, (names.ROUTER, names.STAGE), names.STORE_PORT))


def _policy(intent: Intent, role: str, callers: tuple[str, ...], port: int) -> Object:
    peers = [{"podSelector": {"matchLabels": names.selector(intent.name, caller)}} for caller in callers]
    return intent.owned(
        NETWORK_POLICY,
        f"{intent.name}-{role}",
        role,
        {
            "spec": {
                "podSelector": {"matchLabels": names.selector(intent.name, role)},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": peers, "ports": [{"protocol": "TCP", "port": port}]}],
            }
        },
    )
