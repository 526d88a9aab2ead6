"""The Job that makes the model known: it compiles a source into the store, or reads the manifest of a mounted volume.

Its last container reports the model's sizes and digest in its termination message, which is how the operator learns
what to plan for. A Job is named by the hash of what it was asked for, so another source is another Job.
"""

from __future__ import annotations

from typing import Final

from shoal_operator import names
from shoal_operator.cluster.kinds import JOB, Object
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.model_files import mounted
from shoal_operator.desired.pod import container, pod_spec
from shoal_operator.desired.store import STORE, claim_name

REPORT: Final = "report"
COMPILER: Final = "compile"
REPORT_PATH: Final = "/dev/termination-log"
DEADLINE_SECONDS: Final = 24 * 3600
RETRIES: Final = 4
KEPT_SECONDS: Final = 3600
"""Its logs can be read for an hour."""


def model_key(intent: Intent) -> str:
    """Names what the model is made from: a changed key means another model directory."""
    spec = intent.model.spec
    wanted = spec.model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"served_names"})
    if spec.model.source is not None:
        wanted |= {"precision": spec.precision.value, "groupSize": spec.group_size}
    return names.digest_of(wanted)[:8]


def model_job_name(intent: Intent) -> str:
    """`<name>-model-<hash8>`. A Job cannot be changed: another image, such as one that exists, is another Job."""
    return f"{intent.name}-model-{names.digest_of([model_key(intent), intent.stage_image])[:8]}"


def model_job(intent: Intent) -> Object:
    """The Job for the model as the spec names it now."""
    spec = intent.model.spec
    if spec.model.source is not None:
        directory = f"{STORE}/models/{model_key(intent)}"
        mounts: tuple[Object, ...] = ({"name": "store", "mountPath": STORE},)
        volumes: tuple[Object, ...] = ({"name": "store", "persistentVolumeClaim": {"claimName": claim_name(intent)}},)
        init = [_compiler(intent, directory, mounts)]
    else:
        assert spec.model.volume is not None  # the type holds exactly one of the two
        files = mounted(spec.model.volume)
        directory, mounts, volumes, init = files.path, files.mounts, files.volumes, []
    report = container(
        REPORT,
        intent.stage_image,
        ["python", "-m", "shoal_stage.store", "report", f"--directory={directory}", f"--to={REPORT_PATH}"],
        intent,
        requests={"cpu": "50m", "memory": "128Mi"},
        limits={"memory": "256Mi"},
        mounts=mounts,
        terminationMessagePath=REPORT_PATH,
        terminationMessagePolicy="File",
    )
    pod = pod_spec(intent, [report], volumes=volumes, initContainers=init, restartPolicy="Never")
    if spec.placement.node_selector and spec.model.volume is not None:
        pod["nodeSelector"] = dict(spec.placement.node_selector)
    labels = names.labels(intent.name, names.COMPILE)
    return intent.owned(
        JOB,
        model_job_name(intent),
        names.COMPILE,
        {
            "spec": {
                "backoffLimit": RETRIES,
                "activeDeadlineSeconds": DEADLINE_SECONDS,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "template": {"metadata": {"labels": labels}, "spec": pod},
            }
        },
    )


def _compiler(intent: Intent, directory: str, mounts: tuple[Object, ...]) -> Object:
    spec = intent.model.spec
    source = spec.model.source
    assert source is not None  # only called for a source
    memory = intent.settings.compile_memory
    arguments = [
        "python",
        "-m",
        "shoal_stage",
        "compile",
        _reference(source.uri, spec.model.revision),
        f"--output={directory}",
        f"--cache={STORE}/checkpoints",
        f"--precision={spec.precision.value}",
        f"--name={intent.name}",
    ]
    if source.sha256:
        arguments.append(f"--sha256={source.sha256}")
    if spec.group_size is not None:
        arguments.append(f"--group-size={spec.group_size}")
    return container(
        COMPILER,
        intent.stage_image,
        arguments,
        intent,
        requests={"cpu": "1", "memory": memory},
        limits={"memory": memory},
        mounts=mounts,
    )


def _reference(uri: str, revision: str | None) -> str:
    """The source as the compiler takes it: a revision of the hub stands behind the repository."""
    if revision is None or not uri.startswith("hf://"):
        return uri
    owner, repository, *rest = uri.removeprefix("hf://").split("/", 2)
    return "/".join([f"hf://{owner}", f"{repository}@{revision}", *rest])
