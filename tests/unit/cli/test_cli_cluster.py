"""`shoal plan --cluster` and `shoal status`, with a cluster in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shoal.errors import PlanError, UsageError
from shoal.manifest import ModelShape
from shoal.plan import ModelFacts
from shoal_cli import cluster as seam
from shoal_cli.app import app
from shoal_operator.cluster import api
from shoal_operator.cluster.fake import FakeCluster

MIB = 1 << 20
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/llama-3.1-8b.yaml"
SHAPE = ModelShape(
    family="llama",
    layers=8,
    hidden_size=64,
    heads=4,
    kv_heads=2,
    head_size=16,
    vocab_size=100,
    max_context=8192,
)
FACTS = ModelFacts(SHAPE, 100 * MIB, (100 * MIB,) * 8, 100 * MIB, (MIB,) * 10, "d" * 64)


class Connected(FakeCluster):
    async def __aenter__(self) -> Connected:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def node(name: str, memory: str = "16Gi") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"shoal.dev/platform": "lunar-lake"}},
        "status": {
            "allocatable": {"memory": memory, "gpu.intel.com/xe": "1"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Connected:
    """The cluster of the kubeconfig."""
    made = Connected()

    async def connect() -> Connected:
        return made

    monkeypatch.setattr(api, "connect", connect)
    monkeypatch.setattr("shoal_cli.local.models.model_facts", lambda *_, **__: FACTS)
    return made


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    return result.output


def model(name: str, **status: Any) -> dict[str, Any]:
    body = yaml.safe_load(EXAMPLE.read_text())
    body["metadata"] |= {"name": name, "namespace": "ai"}
    return body | ({"status": status} if status else {})


def test_a_plan_for_the_nodes_of_the_cluster_writes_nothing(there):
    for number in (1, 2, 3):
        there.put(node(f"pc-{number}"))
    plan = json.loads(run("plan", str(EXAMPLE), "--cluster", "--json"))
    held = {stage["node"] for stage in plan["pipelines"][0]["stages"]}
    assert held <= {"pc-1", "pc-2", "pc-3"}
    assert there.writes == []


def test_a_plan_that_cannot_be_says_why(there):
    there.put(node("pc-1", "1Gi"))
    with pytest.raises(PlanError, match="pc-1"):
        run("plan", str(EXAMPLE), "--cluster")


def test_nodes_and_cluster_exclude_each_other(there):
    with pytest.raises(UsageError, match="--nodes or --cluster"):
        run("plan", str(EXAMPLE), "--cluster", "--nodes", str(ROOT / "examples/nodes.yaml"))


def test_status_lists_models(there):
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": "the API answers"}
    there.put(model("llama", conditions=[ready], stages="2/2", url="http://llama/v1"))
    there.put(model("fresh"))
    output = run("status")
    assert "Serving" in output
    assert "2/2" in output
    assert "Unknown" in output


def test_a_long_url_is_folded_and_nothing_is_cut_off(there):
    ready = {"type": "Ready", "status": "False", "reason": "ApiServerUnavailable", "message": ""}
    there.put(model("llama", conditions=[ready], stages="2/2", url=f"http://{'a' * 180}.svc/v1"))
    output = run("status")
    assert "ApiServerUnavailable" in output
    assert "…" not in output
    assert output.count("a" * 20) > 1


def test_status_of_one_says_why(there):
    condition = {"type": "StagesReady", "status": "False", "reason": "OOMKilled", "message": "1/2 [stage] 0 on pc-1"}
    stage = {"index": 0, "node": "pc-1", "device": "GPU", "layers": "embed, layers 0-7", "memoryBytes": 1 << 30}
    plan = {"pipelines": [{"index": 0, "stages": [stage]}], "spares": ["pc-9"]}
    there.put(model("llama", conditions=[condition], plan=plan))
    output = run("status", "llama", "-n", "ai")
    assert "StagesReady: False (OOMKilled) 1/2 [stage] 0 on pc-1" in output
    assert "embed, layers 0-7" in output
    assert "spares: pc-9" in output
    with pytest.raises(UsageError, match="no ShardedModel absent in namespace ai"):
        run("status", "absent", "-n", "ai")


def test_without_the_client_the_extra_is_named(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "shoal_operator.cluster.api":
            raise ModuleNotFoundError("No module named 'kubernetes'", name="kubernetes")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"needs kubernetes: pip install 'shoal\[operator\]'"):
        seam.with_cluster(lambda cluster: cluster.list)  # type: ignore[arg-type, return-value]
