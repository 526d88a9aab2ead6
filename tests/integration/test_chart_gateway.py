"""The chart's gateway: off unless asked for, and with no more rights than to see ShardedModels."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shoal_cli.app import app

CHART = Path(__file__).parents[2] / "charts/shoal"
NAMESPACED = {
    "mode": "Namespaced",
    "watchNamespaces": ["team-a", "team-b"],
    "nodes": [{"name": "pc-1", "memory": {"total": "32Gi", "free": "20Gi"}}],
}


@pytest.fixture
def gateway(helm_program: Path, tmp_path: Path):
    """The gateway's manifests for some values."""

    def rendered(gateway: dict[str, Any], **values: Any) -> list[dict[str, Any]]:
        file = tmp_path / "values.json"
        file.write_text(json.dumps({"gateway": gateway} | values))
        argv = [helm_program, "template", "shoal", str(CHART), "--namespace", "shoal-system", "--values", str(file)]
        done = subprocess.run(
            argv, env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        every = [each for each in yaml.safe_load_all(done.stdout) if each]
        return [each for each in every if "gateway" in each["metadata"]["name"]]

    return rendered


def command_of(manifests: list[dict[str, Any]]) -> list[str]:
    (deployment,) = [each for each in manifests if each["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]["containers"][0]["command"]


def test_it_is_off_by_default(gateway) -> None:
    assert gateway({}) == []


def test_it_may_see_sharded_models_and_nothing_else(gateway) -> None:
    manifests = gateway({"enabled": True})
    kinds = {"Deployment", "Service", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    assert {each["kind"] for each in manifests} == kinds
    (role,) = [each for each in manifests if each["kind"] == "ClusterRole"]
    assert role["rules"] == [{"apiGroups": ["shoal.dev"], "resources": ["shardedmodels"], "verbs": ["list", "watch"]}]


def test_case_106_namespaced_it_has_a_role_in_each_namespace_and_asks_for_no_other(gateway) -> None:
    manifests = gateway({"enabled": True}, **NAMESPACED)
    assert sorted(each["metadata"]["namespace"] for each in manifests if each["kind"] == "Role") == ["team-a", "team-b"]
    assert not [each for each in manifests if each["kind"].startswith("Cluster")]
    assert [each for each in command_of(manifests) if "namespace" in each] == [
        "--namespace=team-a",
        "--namespace=team-b",
    ]


def test_its_command_line_is_one_that_the_command_takes(gateway) -> None:
    command = command_of(gateway({"enabled": True, "apiKeysSecret": "callers"}, **NAMESPACED))
    # As in the image, which has no console scripts.
    assert command[:4] == ["python", "-m", "shoal_cli.main", "gateway"]
    result = CliRunner().invoke(app, [*command[3:], "--help"])
    assert result.exit_code == 0
    known = [option.split("=")[0] for option in command[4:]]
    assert [option for option in known if option not in result.output] == []
    assert "--api-keys=/etc/shoal/keys/keys" in command
