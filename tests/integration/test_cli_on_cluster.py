"""`shoal plan --cluster` and `shoal status` against a real API server, as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from shoal.manifest import MANIFEST_FILE, Block, BlockKind, FileEntry, Manifest, ModelShape, Precision
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_to_json
from testcluster.api import Api
from testcluster.audit import AuditLog
from testcluster.control_plane import ControlPlane
from testcluster.kubelet import RUNNING, Kubelet, PodFate

MIB = 1 << 20
SHAPE = ModelShape(
    family="llama", layers=8, hidden_size=1024, heads=8, kv_heads=4, head_size=128, vocab_size=32000, max_context=4096
)

Shoal = Callable[..., subprocess.CompletedProcess[str]]


def manifest() -> Manifest:
    """Of a model directory whose blocks are large enough to be cut."""

    def block(name: str, kind: BlockKind) -> Block:
        xml, weights = (
            FileEntry(path=f"blocks/{name}.{end}", bytes=size, sha256="0" * 64)
            for end, size in (("xml", 1000), ("bin", 128 * MIB))
        )
        return Block(name=name, kind=kind, xml=xml, bin=weights, weight_bytes=128 * MIB)

    layers = [block(f"layer-{number:03}", BlockKind.LAYER) for number in range(SHAPE.layers)]
    return Manifest(
        name="small",
        source_sha256="1" * 64,
        precision=Precision.INT8,
        shape=SHAPE,
        tied_embeddings=True,
        blocks=(block("embed", BlockKind.EMBED), *layers, block("head", BlockKind.HEAD)),
    )


@pytest.fixture
def shoal(control_plane: ControlPlane, tmp_path: Path) -> Shoal:
    """Runs the command with the cluster's kubeconfig; it must succeed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "shoal_cli.main", *arguments],
            env={"HOME": str(tmp_path), "KUBECONFIG": str(control_plane.admin.path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    return run


@pytest.fixture
def model_file(tmp_path: Path, namespace: str) -> Path:
    """A ShardedModel whose model directory is on this machine."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / MANIFEST_FILE).write_bytes(manifest().canonical_json())
    body = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "ShardedModel",
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {
            "model": {"volume": {"hostPath": {"path": str(directory)}}},
            "stages": {"count": 2},
            "scheduler": {"streams": 1, "maxContext": 512},
        },
    }
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(body))
    return file


def test_the_plan_is_the_one_that_the_operator_then_makes_and_nothing_is_written(
    shoal: Shoal,
    model_file: Path,
    start_operator,
    five_pcs: list[str],
    kubelet: Kubelet,
    admin: Api,
    cluster,
    audit: AuditLog,
    control_plane: ControlPlane,
) -> None:
    mark = audit.mark()
    said = json.loads(shoal("plan", str(model_file), "--cluster", "--json").stdout)
    table = shoal("plan", str(model_file), "--cluster").stdout
    # The tests themselves write as the same user, through httpx.
    assert [each for each in audit.writes(user=control_plane.admin.user, since=mark) if "httpx" not in each.agent] == []
    places = [(stage["node"], stage["blockStart"], stage["blockEnd"]) for stage in said["pipelines"][0]["stages"]]
    assert {node for node, _, _ in places} <= set(five_pcs)
    assert all(node in table for node, _, _ in places)

    report = facts_to_json(ModelFacts.of_manifest(manifest()))
    kubelet.decide(
        lambda pod: (
            PodFate(phase="Succeeded", ready=False, message=report)
            if any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", []))
            else RUNNING
        )
    )
    start_operator()
    body = yaml.safe_load(model_file.read_text())
    admin.apply(body)
    cluster.wait_for("Ready", name="small")
    made = cluster.model("small")["status"]["plan"]["pipelines"][0]["stages"]
    assert [stage["node"] for stage in made] == [node for node, _, _ in places]
    # The one that serves is planned as itself: what it holds already is not in its own way.
    again = json.loads(shoal("plan", str(model_file), "--cluster", "--json").stdout)
    assert again["pipelines"][0]["stages"][0]["node"] == places[0][0]

    listed = shoal("status", "-n", cluster.namespace).stdout
    assert "small" in listed
    assert "Serving" in listed
    shown = shoal("status", "small", "-n", cluster.namespace).stdout
    assert "Ready: True (Serving)" in shown
    assert all(node in shown for node, _, _ in places)
