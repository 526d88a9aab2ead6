"""Who may talk to whom: stages hear the router and each other, the store hears those that pull from it.

Stages hold a model and run what they are sent; nobody else of the cluster has business with them. The router's API
stays open: its Service decides who calls. Its metrics are for the pods of the cluster, among which Prometheus is.
"""

from __future__ import annotations

from shoal_operator import names
from shoal_operator.cluster.kinds import NETWORK_POLICY, Object
from shoal_operator.desired.draft import needs_store
from shoal_operator.desired.intent import Intent


def network_policies(intent: Intent) -> tuple[Object, ...]:
    """A policy for the stages, one for the router, and one for the store when there is a source."""
    policies = [
        _policy(intent, names.STAGE, [_from(intent, (names.ROUTER, names.STAGE), names.STAGE_PORT)]),
        _policy(
            intent,
            names.ROUTER,
            [
                {"ports": [_port(names.ROUTER_PORT)]},
                {"from": [{"namespaceSelector": {}}], "ports": [_port(names.METRICS_PORT)]},
            ],
        ),
    ]
    if needs_store(intent):
        policies.append(_policy(intent, names.STORE, [_from(intent, (names.ROUTER, names.STAGE), names.STORE_PORT)]))
    return tuple(policies)


def _from(intent: Intent, callers: tuple[str, ...], port: int) -> Object:
    peers = [{"podSelector": {"matchLabels": names.selector(intent.name, caller)}} for caller in callers]
    return {"from": peers, "ports": [_port(port)]}


def _port(number: int) -> Object:
    return {"protocol": "TCP", "port": number}


def _policy(intent: Intent, role: str, ingress: list[Object]) -> Object:
    return intent.owned(
        NETWORK_POLICY,
        f"{intent.name}-{role}",
        role,
        {
            "spec": {
                "podSelector": {"matchLabels": names.selector(intent.name, role)},
                "policyTypes": ["Ingress"],
                "ingress": ingress,
            }
        },
    )
