"""spec.router: where the OpenAI API listens, and who may call it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.resource.bounds import Annotations, ObjectName, Quantity
from shoal.resource.rules import Object, rule


class ServiceType(StrEnum):
    """Kinds of Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Service(Object):
    """The router's Service."""

    type: ServiceType = ServiceType.CLUSTER_IP
    """Who reaches it: pods of the cluster, every node's port, or a load balancer's address."""

    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the OpenAI API; `shoal run` listens on it too."""

    node_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port on every node. Without it the cluster chooses one."""

    annotations: Annotations = Field(default_factory=dict)
    """Annotations of the Service."""

    @rule(
        cel="!has(self.nodePort) || self.type != 'ClusterIP'",
        message="nodePort needs type: NodePort or LoadBalancer",
        field="nodePort",
    )
    def _node_port_needs_type(self) -> bool:
        return self.node_port is None or self.type is not ServiceType.CLUSTER_IP


class Ingress(Object):
    """An Ingress in front of the Service, with settings that let streamed answers through."""

    host: ObjectName
    """Host name of the API."""

    class_name: ObjectName | None = None
    """IngressClass. Without it: the cluster's default (Traefik in k3s)."""

    tls_secret_name: ObjectName | None = None
    """Secret with the host's certificate. Without it: plain HTTP."""

    annotations: Annotations = Field(default_factory=dict)
    """Further annotations of the Ingress."""


class ApiKeysSecret(Object):
    """A Secret with the API keys."""

    name: ObjectName
    """Name of the Secret."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "api-keys"
    """Entry of the Secret; one key a line, or `sha256:` and the hash of one in hex."""


class ResourceAmounts(Object):
    """Amounts of CPU and memory."""

    cpu: Quantity | None = None
    """Cores, such as 2 or 500m."""

    memory: Quantity | None = None
    """Bytes, such as 512Mi."""


class ComputeResources(Object):
    """What the router's container asks for and may use."""

    requests: ResourceAmounts = Field(default_factory=ResourceAmounts)
    """What the scheduler reserves."""

    limits: ResourceAmounts = Field(default_factory=ResourceAmounts)
    """What it may not pass."""


class Router(Object):
    """The process that speaks the OpenAI API and drives the stages."""

    service: Service = Field(default_factory=Service)
    """Its Service."""

    ingress: Ingress | None = None
    """An Ingress in front of it. Without it: none."""

    api_keys_secret_ref: ApiKeysSecret | None = None
    """API keys that callers must present. Without it: everybody who reaches the Service may call."""

    requests_per_key: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Requests of one API key that may run at the same time; further ones get 429. Without it: any number."""

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests of one API key in a minute; further ones get 429. Without it: any number."""

    tls_secret_name: ObjectName | None = None
    """Secret with the API's certificate (tls.crt, tls.key), which the router serves itself. Without it: plain HTTP."""

    resources: ComputeResources = Field(default_factory=ComputeResources)
    """Requests and limits of its container."""

    @rule(
        cel="!has(self.requestsPerKey) || has(self.apiKeysSecretRef)",
        message="requestsPerKey needs apiKeysSecretRef: without keys nobody is told apart",
        field="requestsPerKey",
    )
    def _limit_needs_keys(self) -> bool:
        return self.requests_per_key is None or self.api_keys_secret_ref is not None

    @rule(
        cel="!has(self.requestsPerMinute) || has(self.apiKeysSecretRef)",
        message="requestsPerMinute needs apiKeysSecretRef: without keys nobody is told apart",
        field="requestsPerMinute",
    )
    def _rate_needs_keys(self) -> bool:
        return self.requests_per_minute is None or self.api_keys_secret_ref is not None

    @rule(
        cel="!has(self.tlsSecretName) || !has(self.ingress)",
        message="tlsSecretName and ingress exclude each other: an Ingress has a tlsSecretName of its own",
        field="tlsSecretName",
    )
    def _tls_once(self) -> bool:
        return self.tls_secret_name is None or self.ingress is None
