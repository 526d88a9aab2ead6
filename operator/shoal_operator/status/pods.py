"""Why a pod is not ready, in one CamelCase reason and one sentence: what the kubelet and the scheduler say of it.

The order is that of a pod's life: it is placed, its images come, its init containers run, its container starts and
becomes ready. The first thing that is wrong is the reason; nothing wrong but not ready yet is Pulling or Loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

LONGEST: Final = 600
EXHAUSTED: Final = 8
"""Starts after which one more helps nobody: by then the kubelet waits for five minutes before each."""

IMAGE_REASONS: Final = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
CONFIG_REASONS: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
EXIT_REASONS: Final[Mapping[int, str]] = {
    # The exit codes of shoal.errors.
    2: "UsageError",
    4: "IntegrityError",
    5: "ResourceMissing",
    6: "StageError",
    137: "Killed",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something is not as it should be. `waiting` means that it is on its way, not in trouble."""

    reason: str
    message: str
    waiting: bool = False


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the kubelet says that the pod serves."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod.get("status", {}).get("conditions", ())
    )


def is_started(pod: Mapping[str, Any]) -> bool:
    """Whether every container runs and has passed its startup probe."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return bool(statuses) and all(
        "running" in each.get("state", {}) and each.get("started", False) for each in statuses
    )


def trouble_of(pod: Mapping[str, Any] | None, what: str) -> Trouble | None:
    """Why the pod of `what` (such as `stage 1 on pc-02`) is not ready; None when it is."""
    if pod is None:
        return Trouble("Starting", f"{what}: its pod is being created", waiting=True)
    if is_ready(pod):
        return None
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return Trouble("Terminating", f"{what}: its pod is ending", waiting=True)
    return (
        _placed(status, what)
        or _admitted(status, what)
        or _containers(status.get("initContainerStatuses", ()), what, running="Pulling")
        or _started(status.get("containerStatuses", ()), what)
        or Trouble("Starting", f"{what}: its pod is starting", waiting=True)
    )


def _placed(status: Mapping[str, Any], what: str) -> Trouble | None:
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Trouble("Unschedulable", short(f"{what}: {condition.get('message', 'no node takes its pod')}"))
    return None


def _admitted(status: Mapping[str, Any], what: str) -> Trouble | None:
    """A kubelet refuses a pod as a whole, for one when the device plugin has no device to give."""
    if status.get("phase") != "Failed":
        return None
    reason, message = status.get("reason", "Failed"), status.get("message", "")
    if reason == "UnexpectedAdmissionError":
        return Trouble("DeviceUnavailable", short(f"{what}: the node has no free device: {message}"))
    if reason == "NodeLost":
        return Trouble("NodeLost", short(f"{what}: its node is lost"))
    if reason in ("Failed", "") and not message:
        return None
    return Trouble(_camel(reason), short(f"{what}: {message or reason}"))


def _containers(statuses: Any, what: str, running: str) -> Trouble | None:
    for each in statuses:
        state = each.get("state", {})
        name = each.get("name", "")
        if "waiting" in state:
            found = _waiting(each, state["waiting"], f"{what}, container {name}")
            if found is not None:
                return found
        elif "terminated" in state and state["terminated"].get("exitCode", 0) != 0:
            return _ended(state["terminated"], f"{what}, container {name}")
        elif "running" in state and not each.get("ready", False):
            restarts = _last_end(each, f"{what}, container {name}")
            return restarts or Trouble(running, f"{what}: {_doing(running)}", waiting=True)
    return None


def _started(statuses: Any, what: str) -> Trouble | None:
    """What is wrong with containers that were started; one that ends again and again does not mend itself."""
    trouble = _containers(statuses, what, running="Loading")
    starts = max((each.get("restartCount", 0) for each in statuses), default=0)
    if trouble is None or trouble.waiting or starts < EXHAUSTED:
        return trouble
    remedy = "mend that, then delete its pod or change the spec"
    return Trouble("RecoveryExhausted", short(f"{trouble.message}; it was started anew {starts} times: {remedy}"))


def _waiting(container: Mapping[str, Any], waiting: Mapping[str, Any], what: str) -> Trouble | None:
    reason = waiting.get("reason", "")
    if reason in IMAGE_REASONS:
        return Trouble(
            "ImagePullBackOff", short(f"{what}: image {container.get('image', '')}: {waiting.get('message', reason)}")
        )
    if reason in CONFIG_REASONS:
        return Trouble(reason, short(f"{what}: {waiting.get('message', reason)}"))
    if reason == "CrashLoopBackOff":
        return _last_end(container, what) or Trouble("CrashLoopBackOff", f"{what}: it ends again and again")
    return None


def _last_end(container: Mapping[str, Any], what: str) -> Trouble | None:
    last = container.get("lastState", {}).get("terminated")
    return _ended(last, what) if last and last.get("exitCode", 0) != 0 else None


def _ended(terminated: Mapping[str, Any], what: str) -> Trouble:
    """From the termination message, whose last line is what shoal's programs say when they give up."""
    code = terminated.get("exitCode", 0)
    lines = [line for line in str(terminated.get("message", "")).splitlines() if line.strip()]
    words = lines[-1].strip() if lines else f"it ended with exit code {code}"
    if terminated.get("reason") == "OOMKilled":
        return Trouble("OOMKilled", short(f"{what}: it needed more memory than planned and was killed"))
    reason = EXIT_REASONS.get(code, "Failed")
    if reason == "ResourceMissing" and "device" in words.lower():
        reason = "DeviceUnavailable"
    return Trouble(reason, short(f"{what}: {words}"))


def _doing(running: str) -> str:
    return "its blocks are being pulled" if running == "Pulling" else "it loads its blocks"


def _camel(reason: str) -> str:
    kept = "".join(part[:1].upper() + part[1:] for part in reason.replace("-", " ").split() if part.isalnum())
    return kept if kept[:1].isalpha() else "Failed"


def short(text: str, longest: int = LONGEST) -> str:
    """One line, of a length that people read."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
