"""What is known of the model: its facts, whether they are of what the spec names now, and what the Job says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.plan.facts import ModelFacts
from shoal_operator import names
from shoal_operator.cluster.kinds import JOB, Object, Ref, ref_of
from shoal_operator.desired.intent import Intent
from shoal_operator.desired.model_job import COMPILER, model_job_name, model_key, sizes_job_name
from shoal_operator.reconcile.observed import Observed
from shoal_operator.status.pods import Trouble, short, trouble_of


@dataclass(frozen=True, slots=True)
class ModelState:
    """`facts`, the key of what they were made from and where that lies; `current`: it is what the spec names now.

    `spent` is a Job that is done and has told nothing: it is removed, and made again. `compiling` is the pod whose
    compiler runs now, with the memory that `sizes` ask for.
    """

    facts: ModelFacts | None
    key: str
    origin: str
    current: bool
    trouble: Trouble | None = None
    spent: Object | None = None
    compiling: Ref | None = None
    sizes: ModelFacts | None = None


def model_state(intent: Intent, observed: Observed) -> ModelState:
    """Look at the facts that are kept, and at the Job when they are not those that are wanted."""
    key = model_key(intent)
    if observed.facts is not None and observed.facts_key == key:
        return ModelState(observed.facts, key, intent.origin, current=True)
    before = (observed.facts, observed.facts_key, observed.origin)
    sizes = observed.sizes if observed.sizes_key == key else None
    if intent.origin == "source" and sizes is None:
        job = observed.child(Ref(JOB, intent.namespace, sizes_job_name(intent)))
        sizes = observed.reported(job) if job is not None else None
        if sizes is None:
            return _waiting_for(intent, observed, job, before)
    job = observed.child(Ref(JOB, intent.namespace, model_job_name(intent)))
    return replace(_waiting_for(intent, observed, job, before, key), sizes=sizes)


Before = tuple[ModelFacts | None, str, str]


def _waiting_for(
    intent: Intent, observed: Observed, job: Object | None, before: Before, key: str | None = None
) -> ModelState:
    """How a Job is; with `key` its report is the model's facts."""
    if job is None:
        return ModelState(*before, current=False, trouble=Trouble("Compiling", _doing(intent), waiting=True))
    facts = observed.reported(job)
    if facts is not None and key is not None:
        return ModelState(facts, key, intent.origin, current=True)
    condition = _finished(job)
    if condition is not None and condition["type"] == "Complete":
        again = Trouble("Compiling", "the Job is done, but its report is gone: it runs again", waiting=True)
        return ModelState(*before, current=False, trouble=again, spent=job)
    pod = _newest_pod(observed, job)
    compiling = ref_of(pod) if pod is not None and _runs(pod, COMPILER) else None
    return ModelState(*before, current=False, trouble=_trouble(intent, job, pod, condition), compiling=compiling)


def with_progress(state: ModelState, line: str) -> ModelState:
    """The state with what the compiler last said of its progress."""
    if not line or state.trouble is None or not state.trouble.waiting:
        return state
    return replace(state, trouble=replace(state.trouble, message=short(line)))


def _newest_pod(observed: Observed, job: Object) -> Object | None:
    uid = job["metadata"]["uid"]
    pods = [
        pod
        for pod in observed.pods_of(names.COMPILE)
        if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))
    ]
    return max(pods, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), default=None)


def _runs(pod: Mapping[str, Any], container: str) -> bool:
    statuses = pod.get("status", {}).get("initContainerStatuses", ())
    return any(each["name"] == container and "running" in each.get("state", {}) for each in statuses)


def _trouble(intent: Intent, job: Object, pod: Object | None, failed: Mapping[str, Any] | None) -> Trouble:
    found = trouble_of(pod, "compile Job") if pod is not None else None
    if failed is not None:
        why = found.message if found is not None else str(failed.get("message", ""))
        return Trouble(
            "CompileFailed", short(f"{why}; mend it, or delete the Job {job['metadata']['name']} to try again")
        )
    if found is None or found.waiting:
        return Trouble("Compiling", _doing(intent), waiting=True)
    return found


def _finished(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for condition in job.get("status", {}).get("conditions", ()):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return dict(condition)
    return None


def _doing(intent: Intent) -> str:
    source = intent.model.spec.model.source
    return f"{source.uri} is fetched and compiled" if source is not None else "the volume's manifest is read"
