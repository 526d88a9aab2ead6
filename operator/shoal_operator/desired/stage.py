"""The Deployment of one stage, pinned to its planned node, and the headless Service in which stages have names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.plan.document import Device, StagePlan
from shoal.plan.facts import ModelFacts
from shoal_operator import names
from shoal_operator.cluster.kinds import DEPLOYMENT, SERVICE, Object
from shoal_operator.desired.certificates import TLS_DIRECTORY, tls_files
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.model_files import model_files
from shoal_operator.desired.pod import container, pod_spec, tolerations

GONE_SECONDS: Final = 15
STOP_SECONDS: Final = 30
SLOWEST_PULL: Final = 10 * 2**20
"""Bytes a second that a pull or a load reaches at worst (a 100 Mb link); the startup budget follows from it."""
PROBE_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage of the plan with its name, and the resource that grants its device (empty: it needs none).

    `standby`: it waits to take the place of the stage of this index; `held`: its Deployment is left as it is for now.
    """

    pipeline: int
    stage: StagePlan
    name: str
    device_resource: str = ""
    standby: bool = False
    held: bool = False


def stage_deployment(intent: Intent, facts: ModelFacts, placed: PlacedStage) -> Object:
    """One pod that serves blocks [start, end) on the planned node and device.

    Its pod does not say whether it stands by, nor for which pipeline: taking over must not start it anew.
    """
    stage, spec = placed.stage, intent.model.spec
    files = model_files(intent, facts, (stage.block_start, stage.block_end))
    tls_volume, tls_mount = tls_files(intent.name, names.STAGE)
    where = {"pipeline": str(placed.pipeline), "stage": str(stage.index)}
    if placed.standby:
        where |= {"standby": "true"}
    memory = str(stage.memory.total)
    device = {placed.device_resource: "1"} if placed.device_resource else {}
    command = [
        "python",
        "-m",
        "shoal_stage",
        "serve",
        f"--model={files.path}",
        f"--blocks={stage.block_start}:{stage.block_end}",
        f"--device={stage.device.value}",
        f"--listen=0.0.0.0:{names.STAGE_PORT}",
        f"--tls-dir={TLS_DIRECTORY}",
        f"--health-listen=0.0.0.0:{names.HEALTH_PORT}",
        f"--streams={spec.scheduler.streams}",
        f"--max-context={intent.context_for(facts)}",
        f"--kv-precision={intent.kv_element(stage.device).value.lower()}",
        "--cache-dir=/cache",
        *(["--exact"] if intent.exact else []),
    ]
    cache = {"name": "cache", "mountPath": "/cache"}
    server = container(
        "stage",
        intent.stage_image,
        command,
        intent,
        requests={"cpu": "500m", "memory": memory, **device},
        limits={"memory": memory, **device},
        mounts=(*files.mounts, cache, tls_mount),
        ports=[
            {"name": "grpc", "containerPort": names.STAGE_PORT},
            {"name": "health", "containerPort": names.HEALTH_PORT},
        ],
        startupProbe=_probe(failures=_startup_budget(stage) // PROBE_SECONDS),
        readinessProbe=_probe(failures=2),
        # Only its own compute thread counts: a neighbour that is gone must not restart this stage.
        livenessProbe=_probe(failures=6),
    )
    pod = pod_spec(
        intent,
        [server],
        volumes=(*files.volumes, {"name": "cache", "emptyDir": {}}, tls_volume),
        groups=intent.settings.supplemental_groups if stage.device is not Device.CPU else (),
        hostname=placed.name,
        subdomain=names.stages_service(intent.name),
        affinity=_on_node(stage.node),
        tolerations=tolerations(intent, GONE_SECONDS),
        terminationGracePeriodSeconds=STOP_SECONDS,
        initContainers=[*files.init, *_doctor(intent, stage, {"memory": memory, **device}, cache)],
    )
    priority = spec.placement.priority_class_name or intent.settings.priority_class
    if priority:
        pod["priorityClassName"] = priority
    labels = names.labels(intent.name, names.STAGE, stage=str(stage.index))
    # The selector needs the name: two pipelines have a stage of the same index, and an old stage may still be ending.
    selector = {**names.selector(intent.name, names.STAGE), names.NAME_LABEL: placed.name}
    return intent.owned(
        DEPLOYMENT,
        placed.name,
        names.STAGE,
        {
            "spec": {
                "replicas": 1,
                "revisionHistoryLimit": 1,
                "progressDeadlineSeconds": _startup_budget(stage) + 600,
                # Two of it would want the same memory and device.
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": {**labels, names.NAME_LABEL: placed.name}}, "spec": pod},
            }
        },
        **where,
    )


def stages_headless_service(intent: Intent) -> Object:
    """Names for stages. A stage must be found before it is ready: the router opens the chain to make it so."""
    return intent.owned(
        SERVICE,
        names.stages_service(intent.name),
        names.STAGE,
        {
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": names.selector(intent.name, names.STAGE),
                "ports": [{"name": "grpc", "port": names.STAGE_PORT, "targetPort": "grpc", "appProtocol": "grpc"}],
            }
        },
    )


def _doctor(intent: Intent, stage: StagePlan, resources: Object, cache: Object) -> list[Object]:
    """Looks at the device before the stage loads: its last line says why the pod does not start. A CPU needs none."""
    if stage.device is Device.CPU:
        return []
    command = ["python", "-m", "shoal_stage", "doctor", f"--device={stage.device.value}", "--cache=/cache"]
    requests = {"cpu": "500m", **resources}
    return [
        container("doctor", intent.stage_image, command, intent, requests=requests, limits=resources, mounts=(cache,))
    ]


def _startup_budget(stage: StagePlan) -> int:
    """Seconds that loading may take: reading the weights at the slowest, and compiling for the device."""
    return 300 + stage.memory.weights // SLOWEST_PULL


def _probe(failures: int) -> Object:
    return {
        "grpc": {"port": names.HEALTH_PORT, "service": "shoal.stage.v1.Stage"},
        "periodSeconds": PROBE_SECONDS,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _on_node(node: str) -> Object:
    """By the node's name, through the scheduler, which checks that memory and device are really free."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
