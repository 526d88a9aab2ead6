"""The operator on a real API server: writes while nothing happens, 100 ShardedModels at once, memory.

The control plane is the one of the tests (tests/cluster), with Node objects in place of PCs and somebody who plays
their kubelets. The operator runs as its own process, as the chart's ServiceAccount; what it writes is counted in the
API server's audit log, and its CPU time and memory are the kernel's figures.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.report import Report
from shoal.manifest import ModelShape
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/cluster/lib"))

from testcluster import binaries, chart  # noqa: E402 - found by the line above
from testcluster.api import Api  # noqa: E402
from testcluster.control_plane import running  # noqa: E402
from testcluster.crds import install_crd  # noqa: E402
from testcluster.kubectl import Command  # noqa: E402
from testcluster.kubelet import RUNNING, Kubelet, PodFate  # noqa: E402
from testcluster.nodes import Nodes, NodeSpec  # noqa: E402
from testcluster.processes import Process, free_ports, wait_until  # noqa: E402

TITLE = "the operator: idle writes, 100 ShardedModels at once, memory"
NAMESPACE = "shoal-system"
MODELS = "shoal.dev/v1alpha1", "shardedmodels"
CONVERGE_SECONDS = 1800.0


def run(*, quick: bool) -> Report:
    """100 models and 10 idle minutes; quick: 10 models and half a minute."""
    count, idle = (10, 30.0) if quick else (100, 600.0)
    report = Report()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        plane = stack.enter_context(running(binaries.ensure(binaries.CONTROL_PLANE), folder))
        api = stack.enter_context(Api(plane.admin))
        install_crd(api, (ROOT / "crds").glob("*.yaml"))
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        nodes = Nodes(api)
        for number in range(count):
            nodes.add(NodeSpec(name=f"pc-{number:03}"))
        helm = Command(program=binaries.ensure(binaries.HELM) / "helm", kubeconfig=plane.admin, home=folder)
        account = chart.grant(
            api, chart.rendered(helm, ROOT / "charts/shoal", NAMESPACE, {}, folder), NAMESPACE, folder
        )
        kubelet = stack.enter_context(Kubelet(plane.admin))
        kubelet.decide(_fate)
        operator = _start(account.path, folder)
        stack.callback(operator.stop)

        since = time.monotonic()
        for number in range(count):
            api.apply(_model(f"model-{number:03}"), namespace=NAMESPACE)
        wait_until(lambda: _ready(api) == count, what=f"{count} ready models", deadline_s=CONVERGE_SECONDS, poll_s=0.5)
        report.add(f"converge_s_{count}", time.monotonic() - since)
        report.add("converge_cpu_s", _cpu_seconds(operator.pid))
        report.add("converge_writes", len(plane.audit.writes(user=account.user)))

        _quiet(plane.audit, account.user)
        mark, cpu = plane.audit.mark(), _cpu_seconds(operator.pid)
        time.sleep(idle)
        writes = plane.audit.writes(user=account.user, since=mark)
        report.add("idle_writes", len(writes))
        report.add("cpu_share_idle", (_cpu_seconds(operator.pid) - cpu) / idle)
        report.add("rss_mb", _rss_mb(operator.pid))
        operator.check_running()
        report.notes.append(f"idle: {idle:.0f} s with {count} ShardedModels; renewals of the Lease are not counted")
        report.notes.append("converge: from the first apply to the last Ready=True, kubelets played, nodes are objects")
        report.notes.extend(f"idle write: {write.verb} {write.what} {write.name}" for write in writes[:10])
    return report


def _start(kubeconfig: Path, folder: Path) -> Process:
    (health,) = free_ports(1)
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "SHOAL_NAMESPACE": NAMESPACE,
        "SHOAL_POD_NAME": "bench",
        "SHOAL_METRICS_PORT": "0",
        "SHOAL_HEALTH_PORT": str(health),
    }
    command = [sys.executable, "-m", "shoal_operator"]
    return Process.start("operator", command, log=folder / "operator.log", environment=environment)


def _model(name: str) -> dict[str, Any]:
    return {
        "apiVersion": MODELS[0],
        "kind": "ShardedModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"volume": {"hostPath": {"path": "/srv/model"}}},
            "stages": {"count": 1},
            "scheduler": {"streams": 2, "maxContext": 2048},
        },
    }


def _fate(pod: dict[str, Any]) -> PodFate:
    owners = {owner["kind"] for owner in pod["metadata"].get("ownerReferences", [])}
    return PodFate(phase="Succeeded", ready=False, message=_facts()) if "Job" in owners else RUNNING


def _facts() -> str:
    shape = ModelShape(
        family="llama",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        vocab_size=128256,
        max_context=131072,
    )
    sizes = (125 << 20,) * 32
    return facts_to_json(ModelFacts(shape, 525 << 20, sizes, 525 << 20, (525 << 20, *sizes, 525 << 20), "a" * 64))


def _ready(api: Api) -> int:
    bodies = api.list(*MODELS, namespace=NAMESPACE)
    return sum(
        any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in body.get("status", {}).get("conditions", [])
        )
        for body in bodies
    )


def _quiet(audit: Any, user: str) -> None:
    """Wait for the tail of the last reconciles: ten seconds without a write."""
    mark, since = audit.mark(), time.monotonic()
    while time.monotonic() - since < 10:
        time.sleep(1)
        if audit.writes(user=user, since=mark):
            mark, since = audit.mark(), time.monotonic()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
