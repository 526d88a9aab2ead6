"""The kinds of object that the operator reads or writes: a closed table, so that RBAC can be checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.resource import API_VERSION, KIND, PLURAL

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind by its API group and version, and the plural that its paths have."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Ref:
    """One object: its kind, namespace (empty for cluster-wide ones) and name."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


SHARDED_MODEL: Final = Kind(API_VERSION, KIND, PLURAL)
NODE: Final = Kind("v1", "Node", "nodes", namespaced=False)
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("v1", "Secret", "secrets")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME: Final = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
JOB: Final = Kind("batch/v1", "Job", "jobs")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
INGRESS: Final = Kind("networking.k8s.io/v1", "Ingress", "ingresses")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")

CHILDREN: Final = (
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    SECRET,
    CONFIG_MAP,
    CLAIM,
    NETWORK_POLICY,
    SERVICE,
    JOB,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INGRESS,
)
"""Kinds of children, in the order in which they are applied: what a pod needs comes before the pod."""

BY_NAME: Final[Mapping[tuple[str, str], Kind]] = {
    (kind.api_version, kind.kind): kind for kind in (*CHILDREN, SHARDED_MODEL, NODE, POD, EVENT, LEASE, VOLUME)
}


def kind_of(obj: Mapping[str, Any]) -> Kind:
    """The kind of an object. Raises KeyError for one that the operator does not know."""
    return BY_NAME[(obj["apiVersion"], obj["kind"])]


def ref_of(obj: Mapping[str, Any]) -> Ref:
    """What names the object."""
    metadata = obj["metadata"]
    return Ref(kind_of(obj), metadata.get("namespace", ""), metadata["name"])
