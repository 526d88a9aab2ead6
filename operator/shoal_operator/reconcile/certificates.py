"""The certificates of a ShardedModel: made when there are none, or when they are due."""

from __future__ import annotations

from shoal_operator import names
from shoal_operator.cluster.kinds import SECRET, Ref
from shoal_operator.desired.certificates import (
    authority_name,
    authority_secret,
    identities,
    is_due,
    leaf_name,
    leaf_secret,
    read_authority,
)
from shoal_operator.desired.intent import Intent
from shoal_operator.reconcile.applying import Applier
from shoal_operator.reconcile.observed import Observed


async def keep_certificates(intent: Intent, observed: Observed, applier: Applier) -> bool:
    """Make what is missing or due; returns whether anything was made."""
    now = observed.now
    ref = Ref(SECRET, intent.namespace, authority_name(intent.name))
    current = observed.child(ref)
    made = False
    if is_due(current, (), None, now):
        current = await applier.write(authority_secret(intent, now), ours=current is not None)
        made = True
    assert current is not None  # it was there, or has just been made
    authority = read_authority(current)
    for role in (names.STAGE, names.ROUTER):
        leaf = observed.child(Ref(SECRET, intent.namespace, leaf_name(intent.name, role)))
        if is_due(leaf, identities(intent, role), authority.certificate, now):
            await applier.write(leaf_secret(intent, role, authority, now), ours=leaf is not None)
            made = True
    return made
