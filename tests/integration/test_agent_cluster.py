"""The agent on a real API server: what it may write, that it writes it, and that a stage then leaves the PC.

The agents' pods are the chart's DaemonSet's; the agent itself is a process of this machine that has its pod's token,
and reads a PC that lies in a folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal import __version__
from shoal.node_use import CONDITION, NodeUse, use_of
from shoal_stage.agent.checkup import CHECKED
from testcluster import chart
from testcluster.api import Api, Manifest, Refused
from testcluster.kubeconfig import Kubeconfig
from testcluster.operating import DEADLINE_S, ROOT, example
from testcluster.processes import Process, wait_until
from testcluster.tokens import service_account_kubeconfig

_STRATEGIC = "application/strategic-merge-patch+json"
YIELD = {"sparePods": 0, "whenInUse": "Yield"}


@pytest.fixture
def pods(
    five_pcs: list[str], admin: Api, namespace: str, helm, tmp_path: Path, chart_service_account: Kubeconfig
) -> Iterator[dict[str, Manifest]]:
    """The agents' pods by the node that they run on."""
    values = {"agent": {"enabled": True}}
    manifests = chart.rendered(helm, ROOT / "charts/shoal", namespace, values, tmp_path)
    mine = [each for each in manifests if "shoal-agent" in json.dumps(each["metadata"].get("labels", {}))]
    for manifest in mine:
        admin.apply(manifest, namespace=namespace)

    def running() -> dict[str, Manifest] | None:
        found = admin.list("v1", "pods", namespace=namespace, labels="app.kubernetes.io/name=shoal-agent")
        placed = {each["spec"]["nodeName"]: each for each in found if each["spec"].get("nodeName")}
        return placed if set(placed) == set(five_pcs) else None

    yield wait_until(running, what="an agent's pod on every PC", deadline_s=DEADLINE_S)
    for manifest in mine:
        if manifest["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            admin.delete(manifest["apiVersion"], f"{manifest['kind'].lower()}s", manifest["metadata"]["name"])
        elif manifest["kind"] == "ValidatingAdmissionPolicy":
            admin.delete(manifest["apiVersion"], "validatingadmissionpolicies", manifest["metadata"]["name"])
        elif manifest["kind"] == "ValidatingAdmissionPolicyBinding":
            admin.delete(manifest["apiVersion"], "validatingadmissionpolicybindings", manifest["metadata"]["name"])


@pytest.fixture
def agent_of(pods: dict[str, Manifest], admin: Api, namespace: str, tmp_path: Path) -> Callable[[str], Kubeconfig]:
    """Who the agent on a node is."""

    def found(node: str) -> Kubeconfig:
        return service_account_kubeconfig(admin, namespace, "shoal-agent", tmp_path, pods[node])

    return found


def patch_status(api: Api, node: str, patch: dict[str, Any]) -> Manifest:
    return api.request("PATCH", api.path("v1", "nodes/status", node), json=patch, headers={"Content-Type": _STRATEGIC})


def said(reason: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": CONDITION, "status": "True", "reason": reason}]}}


def test_an_agent_speaks_for_its_own_pc_and_of_nothing_else(agent_of, five_pcs, admin):
    own, other = five_pcs[:2]
    with Api(agent_of(own)) as api:
        # The policy holds a moment after it was made.
        def refused() -> str:
            try:
                patch_status(api, other, said("UserActive"))
            except Refused as refusal:
                return refusal.message
            return ""

        assert "its own PC alone" in wait_until(refused, what="the policy", deadline_s=DEADLINE_S)
        annotated = {"metadata": {"annotations": {"shoal.dev/link-ms": "0.4"}}}
        assert use_of(patch_status(api, own, said("UserActive") | annotated)["status"]["conditions"]) is not None
        for patch, says in (
            ({"metadata": {"labels": {"shoal.dev/platform": "none"}}}, "no labels"),
            ({"metadata": {"annotations": {"example.com/a": "b"}}}, "annotations of shoal.dev alone"),
            ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, f"condition {CONDITION} alone"),
            ({"status": {"allocatable": {"memory": "1Ti"}}}, "what a node has"),
        ):
            with pytest.raises(Refused, match=says):
                patch_status(api, own, patch)
        for verb, path in (
            ("GET", api.path("v1", "nodes", own)),
            ("PATCH", api.path("v1", "nodes", own)),
            ("GET", api.path("v1", "pods", namespace="default")),
        ):
            with pytest.raises(Refused) as refusal:
                api.request(verb, path, json={}, headers={"Content-Type": _STRATEGIC})
            assert refusal.value.code == httpx.codes.FORBIDDEN
    conditions = {each["type"]: each["status"] for each in admin.get("v1", "nodes", own)["status"]["conditions"]}
    assert conditions["Ready"] == "True"


def lay_down(folder: Path, discharging: bool) -> None:
    """What the agent reads of the PC: its battery."""
    for name, text in {"type": "Battery", "status": "Discharging" if discharging else "Full"}.items():
        file = folder / "sys/class/power_supply/BAT0" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.fixture
def start_agent(agent_of, admin: Api, tmp_path: Path) -> Iterator[Callable[[str, Path], Process]]:
    """Starts the agent of a node on the PC in a folder."""
    running: list[Process] = []

    def start(node: str, pc: Path) -> Process:
        kubeconfig = agent_of(node)
        account = tmp_path / f"{node}-account"
        account.mkdir()
        (account / "token").write_text(kubeconfig.token or "")
        (account / "ca.crt").write_bytes(kubeconfig.authority.read_bytes())
        server = httpx.URL(kubeconfig.server)
        environment = {
            "PATH": os.environ["PATH"],
            "KUBERNETES_SERVICE_HOST": server.host,
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        command = [sys.executable, "-m", "shoal_stage", "agent", f"--node={node}", f"--host={pc}", "--seconds=0.2"]
        command += [f"--account={account}", "--patience=0.01"]
        process = Process.start(f"agent {node}", command, log=tmp_path / f"{node}.log", environment=environment)
        running.append(process)
        return process

    yield start
    for process in running:
        process.stop()


def test_a_stage_leaves_a_pc_on_battery_as_its_agent_says(
    start_operator, start_agent, admin, namespace, cluster, tmp_path, five_pcs
):
    start_operator()
    admin.apply(example(stages={"count": 2}, placement=YIELD), namespace=namespace)
    cluster.wait_for("Ready")
    name, node = next(iter(sorted(cluster.stages().items())))
    # The doctor has been here.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    admin.patch("v1", "nodes", node, {"metadata": {"annotations": {CHECKED: f"{__version__} {boot}"}}})
    lay_down(tmp_path, discharging=False)
    agent = start_agent(node, tmp_path)

    def heard(in_use: bool) -> NodeUse | None:
        agent.check_running()
        found = use_of(admin.get("v1", "nodes", node)["status"]["conditions"])
        return found if found is not None and found.in_use is in_use else None

    wait_until(lambda: heard(False), what="a PC that nobody uses", deadline_s=DEADLINE_S)
    assert cluster.stages()[name] == node
    lay_down(tmp_path, discharging=True)
    use = wait_until(lambda: heard(True), what="a PC on battery", deadline_s=DEADLINE_S)
    assert use.reason == "OnBattery"
    wait_until(lambda: node not in cluster.stages().values(), what="a stage that leaves", deadline_s=DEADLINE_S)
    cluster.wait_for("Ready")
    assert len(cluster.stages()) == 2
