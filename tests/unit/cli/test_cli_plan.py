"""`shoal plan`: tables, JSON, nodes files, and planning from a config.json alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.plan import Device, Plan
from shoal_cli.local import machine
from shoal_cli.local.machine import Machine
from shoal_cli.main import main

GIB = 2**30
LLAMA_8B = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shoal"


@pytest.fixture(autouse=True)
def this_pc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "this_machine", lambda: Machine(32 * GIB, 24 * GIB, 8, (Device.CPU,)))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(
        "apiVersion: shoal.dev/v1alpha1\nkind: ShardedModel\nmetadata: {name: llama-8b}\nspec:\n"
        "  model: {source: {uri: 'hf://org/llama'}}\n  devices: [GPU, CPU]\n  stages: {count: 2}\n"
    )
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A Hugging Face hub with one config.json; what was asked of it."""
    asked: list[dict[str, object]] = []

    def download(repository: str, filename: str, **options: object) -> str:
        asked.append({"repository": repository, "filename": filename, **options})
        path = tmp_path / "config.json"
        path.write_text(json.dumps(LLAMA_8B))
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    return asked


def test_a_plan_of_a_hub_model_fetches_its_config_only(manifest: Path, hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(manifest), "--fetch", "--json"]) == 0
    plan = Plan.model_validate_json(capsys.readouterr().out)
    assert [each["filename"] for each in hub] == ["config.json"]
    assert plan.layers == 32
    weights = sum(stage.memory.weights for stage in plan.pipelines[0].stages)
    # 8.03 billion weights: 1.05 billion of them in two INT8 tables, the others INT4 with a scale each 128.
    assert 4.6e9 < weights < 4.8e9


def test_a_manifest_whose_devices_are_missing_here_uses_the_next_one_and_says_so(manifest: Path, hub, capsys) -> None:
    assert main(["plan", str(manifest), "--fetch"]) == 0
    out = capsys.readouterr().out
    assert "why: local-0 has no GPU: its stage uses CPU, which spec.devices allows" in out
    assert "advice: FitsOneNode" in out


def test_a_nodes_file_is_planned_for(manifest: Path, hub, tmp_path: Path, capsys) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(
        "nodes:\n"
        "  - {name: pc-01, memory: {total: 16Gi, free: 12Gi}}\n"
        "  - {name: pc-02, memory: {total: 16Gi, free: 12Gi}}\n"
    )
    assert main(["plan", str(manifest), "--nodes", str(nodes), "--fetch", "--json"]) == 0
    plan = Plan.model_validate_json(capsys.readouterr().out)
    assert {stage.node for stage in plan.pipelines[0].stages} == {"pc-01", "pc-02"}
    assert {stage.device for stage in plan.pipelines[0].stages} == {Device.GPU}


def test_without_fetch_it_says_what_is_needed(manifest: Path, capsys) -> None:
    assert main(["plan", str(manifest)]) == 2
    assert (
        "hf://org/llama is not on this machine, and a plan needs the sizes in it: add --fetch"
        in capsys.readouterr().err
    )


def test_a_hub_that_cannot_be_reached_is_one_line(manifest: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise OSError("Name or service not known\nwith more lines")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    assert main(["plan", str(manifest), "--fetch"]) == 5
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "hf://org/llama cannot be fetched: Name or service not known" in err
