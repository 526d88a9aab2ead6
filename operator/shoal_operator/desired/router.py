"""The router: one Deployment, the Service in front of it, and an Ingress when the user wants one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.plan.facts import ModelFacts
from shoal_operator import names
from shoal_operator.cluster.kinds import DEPLOYMENT, INGRESS, SERVICE, Object
from shoal_operator.desired.certificates import TLS_DIRECTORY, tls_files
from shoal_operator.desired.draft import drafting
from shoal_operator.desired.intent import Intent, annotated
from shoal_operator.desired.model_files import model_files
from shoal_operator.desired.plan_config import PLAN_KEY, plan_name
from shoal_operator.desired.pod import container, pod_spec, tolerations

GONE_SECONDS: Final = 15
PLAN_DIRECTORY: Final = "/etc/shoal/plan"
KEYS_DIRECTORY: Final = "/etc/shoal/keys"
KEYS_FILE: Final = "api-keys"
API_TLS_DIRECTORY: Final = "/etc/shoal/api-tls"
STREAM_SECONDS: Final = "3600"
DEFAULT_REQUESTS: Final = {"cpu": "250m", "memory": "256Mi"}
DEFAULT_LIMITS: Final = {"memory": "1Gi"}


def router_name(model: str) -> str:
    """The router's Deployment, ServiceAccount and Role. The Service has the model's own name."""
    return f"{model}-router"


def router_deployment(intent: Intent, facts: ModelFacts, draft: ModelFacts | None = None) -> Object:
    """The router's pod. It reads the plan from the mounted ConfigMap: a new plan restarts nothing here."""
    spec = intent.model.spec
    files = model_files(intent, facts, None)
    tls_volume, tls_mount = tls_files(intent.name, names.ROUTER)
    keys, https = _api_keys(intent), _https(intent)
    beside = drafting(intent, facts, draft)
    command = [
        "python",
        "-m",
        "shoal_router",
        f"--plan={PLAN_DIRECTORY}/{PLAN_KEY}",
        f"--model={files.path}",
        f"--listen=0.0.0.0:{names.ROUTER_PORT}",
        f"--metrics-listen=0.0.0.0:{names.METRICS_PORT}",
        "--measure",
        f"--tls-dir={TLS_DIRECTORY}",
        *(f"--served-name={name}" for name in intent.model.served_names),
        f"--max-queue={spec.scheduler.max_queue}",
        f"--prefill-chunk={spec.scheduler.prefill_chunk}",
        f"--recovery-attempts={spec.recovery.max_attempts}",
        f"--recovery-seconds={spec.recovery.max_pause_seconds}",
        f"--speculative-mode={spec.scheduler.speculative.mode}",
        f"--speculative-max-tokens={spec.scheduler.speculative.max_tokens}",
        "--prefix-cache" if spec.scheduler.prefix_cache else "--no-prefix-cache",
        *beside.options,
        *keys.options,
        *https.options,
    ]
    resources = spec.router.resources
    server = container(
        names.ROUTER,
        intent.router_image,
        command,
        intent,
        requests=DEFAULT_REQUESTS | _amounts(resources.requests.cpu, resources.requests.memory),
        limits=DEFAULT_LIMITS | _amounts(resources.limits.cpu, resources.limits.memory),
        mounts=(
            *files.mounts,
            {"name": "plan", "mountPath": PLAN_DIRECTORY, "readOnly": True},
            tls_mount,
            *keys.mounts,
            *https.mounts,
        ),
        ports=[
            {"name": "http", "containerPort": names.ROUTER_PORT},
            {"name": "metrics", "containerPort": names.METRICS_PORT},
        ],
        startupProbe=_probe(intent, "/health/live", period=2, failures=60),
        # Ready means that a token went through all stages, not that a process exists.
        readinessProbe=_probe(intent, "/health/ready", period=5, failures=2),
        livenessProbe=_probe(intent, "/health/live", period=10, failures=6),
    )
    pod = pod_spec(
        intent,
        [server, *beside.containers],
        volumes=(
            *files.volumes,
            *beside.volumes,
            {"name": "plan", "configMap": {"name": plan_name(intent.name)}},
            tls_volume,
            *keys.volumes,
            *https.volumes,
        ),
        service_account=router_name(intent.name),
        initContainers=[*files.init, *beside.init],
        tolerations=tolerations(intent, GONE_SECONDS),
        terminationGracePeriodSeconds=60,
    )
    labels = names.labels(intent.name, names.ROUTER)
    return intent.owned(
        DEPLOYMENT,
        router_name(intent.name),
        names.ROUTER,
        {
            "spec": {
                # Two routers would open the same chain in turns; a pipeline belongs to one.
                "replicas": 1,
                "revisionHistoryLimit": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": names.selector(intent.name, names.ROUTER)},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            }
        },
    )


def router_service(intent: Intent) -> Object:
    """The Service that callers use, under the ShardedModel's name."""
    service = intent.model.spec.router.service
    port: Object = {"name": "http", "port": service.port, "targetPort": "http", "appProtocol": _scheme(intent)}
    if service.node_port is not None:
        port["nodePort"] = service.node_port
    obj = intent.owned(
        SERVICE,
        intent.name,
        names.ROUTER,
        {
            "spec": {
                "type": service.type.value,
                "selector": names.selector(intent.name, names.ROUTER),
                "ports": [port],
            }
        },
    )
    return annotated(obj, service.annotations)


def router_ingress(intent: Intent) -> Object | None:
    """An Ingress that lets streams through: proxies must neither buffer an answer nor end it for being slow.

    Traefik (k3s) streams as it is; nginx needs to be told.
    """
    ingress = intent.model.spec.router.ingress
    if ingress is None:
        return None
    backend = {"service": {"name": intent.name, "port": {"name": "http"}}}
    spec: Object = {
        "rules": [{"host": ingress.host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }
    if ingress.class_name is not None:
        spec["ingressClassName"] = ingress.class_name
    if ingress.tls_secret_name is not None:
        spec["tls"] = [{"hosts": [ingress.host], "secretName": ingress.tls_secret_name}]
    streaming = {
        "nginx.ingress.kubernetes.io/proxy-buffering": "off",
        "nginx.ingress.kubernetes.io/proxy-read-timeout": STREAM_SECONDS,
        "nginx.ingress.kubernetes.io/proxy-send-timeout": STREAM_SECONDS,
        "nginx.ingress.kubernetes.io/proxy-body-size": "16m",
    }
    return annotated(intent.owned(INGRESS, intent.name, names.ROUTER, {"spec": spec}), streaming | ingress.annotations)


def router_url(intent: Intent) -> str:
    """Where callers find the API: the Ingress's host, else the Service's name."""
    router = intent.model.spec.router
    if router.ingress is not None:
        scheme = "https" if router.ingress.tls_secret_name else "http"
        return f"{scheme}://{router.ingress.host}/v1"
    return f"{_scheme(intent)}://{intent.name}.{intent.namespace}.svc.{intent.settings.cluster_domain}:{router.service.port}/v1"


def _scheme(intent: Intent) -> str:
    return "https" if intent.model.spec.router.tls_secret_name else "http"


@dataclass(frozen=True, slots=True)
class _FromSecret:
    """What the router's pod needs to use a Secret of the user's."""

    options: tuple[str, ...] = ()
    volumes: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()


def _api_keys(intent: Intent) -> _FromSecret:
    """The user's Secret as a file, which the router reads anew when it changes; the operator itself never reads it."""
    router = intent.model.spec.router
    secret, limits = router.api_keys_secret_ref, (router.requests_per_key, router.requests_per_minute)
    if secret is None:
        return _FromSecret()
    items = [{"key": secret.key, "path": KEYS_FILE}]
    return _FromSecret(
        options=(
            f"--api-keys={KEYS_DIRECTORY}/{KEYS_FILE}",
            *(
                f"--requests-per-{unit}={most}"
                for unit, most in zip(("key", "minute"), limits, strict=True)
                if most is not None
            ),
        ),
        volumes=({"name": "keys", "secret": {"secretName": secret.name, "items": items, "defaultMode": 0o440}},),
        mounts=({"name": "keys", "mountPath": KEYS_DIRECTORY, "readOnly": True},),
    )


def _https(intent: Intent) -> _FromSecret:
    """The API's certificate, which the router takes into use anew when the Secret changes."""
    secret = intent.model.spec.router.tls_secret_name
    if secret is None:
        return _FromSecret()
    return _FromSecret(
        options=(f"--api-tls-dir={API_TLS_DIRECTORY}",),
        volumes=({"name": "api-tls", "secret": {"secretName": secret, "defaultMode": 0o440}},),
        mounts=({"name": "api-tls", "mountPath": API_TLS_DIRECTORY, "readOnly": True},),
    )


def _amounts(cpu: int | str | None, memory: int | str | None) -> dict[str, str]:
    return {name: str(value) for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}


def _probe(intent: Intent, path: str, *, period: int, failures: int) -> Object:
    get: Object = {"path": path, "port": "http"}
    if _scheme(intent) == "https":
        get["scheme"] = "HTTPS"
    return {
        "httpGet": get,
        "periodSeconds": period,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
