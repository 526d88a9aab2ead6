"""The Jobs that make the model known: one reads a source's sizes, the next compiles it into the store with the memory
that these sizes ask for. A mounted volume needs one Job only, which reads its manifest.

The last container of each reports sizes (and, at the end, the digest) in its termination message, which is how the
operator learns what to plan for. A Job is named by the hash of what it was asked for, so another source is another Job.
"""

from __future__ import annotations

from typing import Final

from shoal.plan.estimate import compile_memory_estimate
from shoal.plan.facts import ModelFacts
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
SIZES_MEMORY: Final = "1Gi"
LIMIT_FACTOR: Final = 2
"""The estimate is what was measured; a Job that is killed for a little more has cost an hour for nothing."""
KEPT_SECONDS: Final = 3600
"""Its logs can be read for an hour."""


def model_key(intent: Intent) -> str:
    """Names what the model is made from: a changed key means another model directory."""
    spec = intent.model.spec
    wanted = spec.model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"served_names"})
    if spec.model.source is not None:
        wanted |= {"precision": spec.precision.value, "groupSize": spec.group_size}
        if spec.keeps_stored:
            wanted |= {"keepsStored": True}
    return names.digest_of(wanted)[:8]


def model_job_name(intent: Intent) -> str:
    """`<name>-model-<hash8>`. A Job cannot be changed: another image, such as one that exists, is another Job."""
    return f"{intent.name}-model-{names.digest_of([model_key(intent), intent.job_image])[:8]}"


def sizes_job_name(intent: Intent) -> str:
    """`<name>-sizes-<hash8>`."""
    return f"{intent.name}-sizes-{names.digest_of([model_key(intent), intent.job_image])[:8]}"


def sizes_job(intent: Intent) -> Object:
    """The Job that reads the source's sizes, of a repository from its config.json; a file stays in the store."""
    command = ["python", "-m", "shoal_stage.store", "sizes", *_source_options(intent), f"--to={REPORT_PATH}"]
    mounts = ({"name": "store", "mountPath": STORE},)
    report = container(
        REPORT,
        intent.job_image,
        command,
        intent,
        requests={"cpu": "100m", "memory": SIZES_MEMORY},
        limits={"memory": SIZES_MEMORY},
        mounts=mounts,
        terminationMessagePath=REPORT_PATH,
        terminationMessagePolicy="File",
    )
    volumes = ({"name": "store", "persistentVolumeClaim": {"claimName": claim_name(intent)}},)
    return _job(intent, sizes_job_name(intent), pod_spec(intent, [report], volumes=volumes, restartPolicy="Never"))


def model_job(intent: Intent, sizes: ModelFacts | None = None) -> Object:
    """The Job for the model as the spec names it now; a source's memory follows from its `sizes`."""
    spec = intent.model.spec
    if spec.model.source is not None:
        directory = f"{STORE}/models/{model_key(intent)}"
        mounts: tuple[Object, ...] = ({"name": "store", "mountPath": STORE},)
        volumes: tuple[Object, ...] = ({"name": "store", "persistentVolumeClaim": {"claimName": claim_name(intent)}},)
        init = [_compiler(intent, directory, mounts, sizes)]
    else:
        assert spec.model.volume is not None  # the type holds exactly one of the two
        files = mounted(spec.model.volume)
        directory, mounts, volumes, init = files.path, files.mounts, files.volumes, []
    report = container(
        REPORT,
        intent.job_image,
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
    return _job(intent, model_job_name(intent), pod)


def _job(intent: Intent, name: str, pod: Object) -> Object:
    labels = names.labels(intent.name, names.COMPILE)
    return intent.owned(
        JOB,
        name,
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


def compile_memory(intent: Intent, sizes: ModelFacts | None) -> tuple[str, str]:
    """What the compiler asks for, and what it may not pass: the planner's estimate, unless the settings say it."""
    given = intent.settings.compile_memory
    if given:
        return given, given
    assert sizes is not None  # a source is compiled when its sizes are known
    estimate = compile_memory_estimate(sizes)
    return str(estimate), str(LIMIT_FACTOR * estimate)


def _source_options(intent: Intent) -> list[str]:
    """The source and how it is to be stored, as both programs take them."""
    spec = intent.model.spec
    source = spec.model.source
    assert source is not None  # only called for a source
    return [
        _reference(source.uri, spec.model.revision),
        f"--cache={STORE}/checkpoints",
        f"--precision={spec.precision.value}",
        *([f"--group-size={spec.group_size}"] if spec.group_size is not None else []),
        *(["--keep-stored"] if spec.keeps_stored else []),
        *([f"--sha256={source.sha256}"] if source.sha256 else []),
    ]


def _compiler(intent: Intent, directory: str, mounts: tuple[Object, ...], sizes: ModelFacts | None) -> Object:
    request, limit = compile_memory(intent, sizes)
    arguments = [
        "python",
        "-m",
        "shoal_stage",
        "compile",
        *_source_options(intent),
        f"--output={directory}",
        f"--name={intent.name}",
    ]
    return container(
        COMPILER,
        intent.job_image,
        arguments,
        intent,
        requests={"cpu": "1", "memory": request},
        limits={"memory": limit},
        mounts=mounts,
    )


def _reference(uri: str, revision: str | None) -> str:
    """The source as the compiler takes it: a revision of the hub stands behind the repository."""
    if revision is None or not uri.startswith("hf://"):
        return uri
    owner, repository, *rest = uri.removeprefix("hf://").split("/", 2)
    return "/".join([f"hf://{owner}", f"{repository}@{revision}", *rest])
