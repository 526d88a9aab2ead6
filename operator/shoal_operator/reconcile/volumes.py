"""Which nodes can mount a model's claim: a local volume is on one node only, and a stage anywhere else never starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from shoal_operator.cluster.interface import Cluster
from shoal_operator.cluster.kinds import CLAIM, VOLUME, Ref
from shoal_operator.desired.intent import Intent
from shoal_operator.errors import ApiForbidden
from shoal_operator.nodes import NodeView

Terms = Sequence[Mapping[str, Any]]
log = logging.getLogger(__name__)


async def volume_terms(cluster: Cluster, intent: Intent) -> Terms | None:
    """The node selector terms of the claim's volume; None when there is no claim, or it says nothing."""
    volume = intent.model.spec.model.volume
    claim = volume.persistent_volume_claim if volume is not None else None
    if claim is None:
        return None
    try:
        bound = await cluster.get(Ref(CLAIM, intent.namespace, claim.claim_name))
        name = (bound or {}).get("spec", {}).get("volumeName")
        persistent = await cluster.get(Ref(VOLUME, "", name)) if name else None
    except ApiForbidden:
        # An operator of single namespaces may not read volumes; the scheduler still keeps pods off, and says so.
        log.debug("the volume of claim %s/%s may not be read", intent.namespace, claim.claim_name)
        return None
    terms: Terms | None = (
        (persistent or {}).get("spec", {}).get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms")
    )
    return terms


def reaches(view: NodeView, terms: Terms | None) -> bool:
    """Whether the node satisfies one of the terms, as the scheduler reads them."""
    return terms is None or any(_holds(term, view) for term in terms)


def _holds(term: Mapping[str, Any], view: NodeView) -> bool:
    labels, fields = term.get("matchExpressions", ()), term.get("matchFields", ())
    return (
        bool(labels or fields)
        and all(_met(each, view.facts.labels) for each in labels)
        and all(_met(each, {"metadata.name": view.name}) for each in fields)
    )


def _met(expression: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    key, wanted = expression["key"], expression.get("values", ())
    value = values.get(key)
    match expression["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and value.lstrip("-").isdecimal() and int(value) > int(wanted[0])
        case "Lt":
            return value is not None and value.lstrip("-").isdecimal() and int(value) < int(wanted[0])
    return False
