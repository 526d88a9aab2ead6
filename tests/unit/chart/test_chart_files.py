"""What the chart holds agrees with the rest of the repository; nothing is rendered here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal import __version__
from shoal.resource import GROUP, KIND, PLURAL
from shoal_operator.metrics import Metrics
from shoal_operator.settings import PREFIX, OperatorSettings

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/shoal"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def test_chart_has_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_crds_of_the_chart_are_those_of_the_repository_to_the_byte():
    ours = {file.name: file.read_bytes() for file in (ROOT / "crds").glob("*.yaml")}
    assert ours, "crds/ is empty: run `make generate`"
    assert {file.name: file.read_bytes() for file in (CHART / "files/crds").glob("*.yaml")} == ours


def test_crd_is_that_of_the_sharded_model():
    (crd,) = [yaml.safe_load(file.read_text()) for file in (CHART / "files/crds").glob("*.yaml")]
    assert crd["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert crd["spec"]["names"]["kind"] == KIND


def test_deployment_sets_every_setting_of_the_operator():
    template = (CHART / "templates/deployment.yaml").read_text()
    named = set(re.findall(rf"name: ({PREFIX}[A-Z_]+)", template))
    assert named == {PREFIX + name.upper() for name in OperatorSettings.model_fields}


def test_defaults_of_the_chart_are_those_of_the_operator():
    settings = OperatorSettings()
    ours = VALUES["operator"]
    assert ours["resyncSeconds"] == settings.resync_seconds
    assert ours["workers"] == settings.workers
    assert ours["nodeCache"] == settings.node_cache
    assert ours["compileMemory"] == settings.compile_memory
    assert ours["storeSize"] == settings.store_size
    assert ours["clusterDomain"] == settings.cluster_domain
    assert ours["leaseSeconds"] == settings.lease_seconds
    assert ours["logLevel"] == settings.log_level
    assert ours["logFormat"] == settings.log_format
    images = {"stage": settings.stage_image, "compile": settings.compile_image, "router": settings.router_image}
    for part, image in images.items():
        assert image == f"{VALUES['images'][part]['repository']}:{__version__}"


def properties(schema: dict[str, Any], where: str = "") -> dict[str, dict[str, Any]]:
    """Every property of the values by its dotted name; those of lists and free maps excluded."""
    found: dict[str, dict[str, Any]] = {}
    for name, each in schema.get("properties", {}).items():
        target = SCHEMA["definitions"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        found[f"{where}{name}"] = target
        found |= properties(target, f"{where}{name}.")
    return found


def keys(values: dict[str, Any], where: str = "") -> set[str]:
    """Every key of the values by its dotted name."""
    found: set[str] = set()
    for name, value in values.items():
        found.add(f"{where}{name}")
        if isinstance(value, dict):
            found |= keys(value, f"{where}{name}.")
    return found


def test_every_value_has_a_default_and_a_schema():
    free = ("resources.requests.", "resources.limits.", "metrics.dashboard.labels.")
    given = {key for key in keys(VALUES) if not key.startswith(free)}
    assert given == set(properties(SCHEMA)) - {"global"}


@pytest.mark.parametrize("name", [name for name, each in properties(SCHEMA).items() if "properties" in each])
def test_schema_refuses_unknown_keys(name):
    assert properties(SCHEMA)[name]["additionalProperties"] is False


@pytest.mark.parametrize("file", sorted((CHART / "files/dashboards").glob("*.json")), ids=lambda file: file.stem)
def test_dashboards_show_metrics_that_exist(file):
    known = {
        sample
        for family in Metrics().registry.collect()
        for sample in (family.name, f"{family.name}_total", f"{family.name}_bucket", f"{family.name}_count")
    }
    dashboard = json.loads(file.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for query in queries for name in re.findall(r"shoal_\w+", query)}
    assert named
    assert named <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
