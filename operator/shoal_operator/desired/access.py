"""The router's identity, and the one right that it has: to watch its own plan.

Its pod carries no token: today the router reads the plan from a mounted file, and a token that nothing reads is only
there to be stolen.
"""

from __future__ import annotations

from shoal_operator import names
from shoal_operator.cluster.kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Object
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.plan_config import plan_name
from shoal_operator.desired.router import router_name


def router_access(intent: Intent) -> tuple[Object, ...]:
    """ServiceAccount, Role and RoleBinding."""
    name = router_name(intent.name)
    rules = [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [plan_name(intent.name)],
            "verbs": ["get", "list", "watch"],
        }
    ]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": intent.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return (
        intent.owned(SERVICE_ACCOUNT, name, names.ROUTER, {"automountServiceAccountToken": False}),
        intent.owned(ROLE, name, names.ROUTER, {"rules": rules}),
        intent.owned(ROLE_BINDING, name, names.ROUTER, {"roleRef": role, "subjects": [subject]}),
    )
