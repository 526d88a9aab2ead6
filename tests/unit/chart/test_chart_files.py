"""What the chart holds agrees with the rest of the repository; nothing is rendered here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal import __version__
from shoal.resource import GROUP, KIND, PLURAL
from shoal_operator.metrics import Metrics
from shoal_operator.settings import PREFIX, OperatorSettings
from shoal_router.generation import GeneratorStatus
from shoal_router.metrics.families import Families
from shoal_router.metrics.levels import Levels
from shoal_router.schedule.speculation import SpeculationStats

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
    assert ours["otlpEndpoint"] == settings.otlp_endpoint
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
    amounts = [f"{part}resources.{kind}." for part in ("", "gateway.", "agent.") for kind in ("requests", "limits")]
    free = (*amounts, "metrics.dashboard.labels.")
    given = {key for key in keys(VALUES) if not key.startswith(free)}
    assert given == set(properties(SCHEMA)) - {"global"}


@pytest.mark.parametrize("name", [name for name, each in properties(SCHEMA).items() if "properties" in each])
def test_schema_refuses_unknown_keys(name):
    assert properties(SCHEMA)[name]["additionalProperties"] is False


@pytest.mark.parametrize("file", sorted((CHART / "files/dashboards").glob("*.json")), ids=lambda file: file.stem)
def test_dashboards_show_metrics_that_exist(file):
    dashboard = json.loads(file.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = metrics_in(queries)
    assert named
    assert named <= samples()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_ask_for_metrics_that_exist():
    groups = yaml.safe_load((CHART / "files/rules/shoal.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert metrics_in([rule["expr"] for rule in rules]) <= samples()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_every_metric_of_the_router_is_in_a_dashboard():
    shown = metrics_in([file.read_text() for file in (CHART / "files/dashboards").glob("*.json")])
    ours = {family.name for family in Levels(status, SpeculationStats(), dict).collect()}
    ours |= {family.name for family in Families().registry.collect() if family.name.startswith("shoal_")}
    unseen = {name for name in ours if not any(each.startswith(name) for each in shown)}
    assert unseen == {"shoal_pipeline_epoch"}, "an epoch is a number to look up, not a line to watch"


def metrics_in(queries: Iterable[str]) -> set[str]:
    """The metrics of ours that queries name; shoal_dev_model is a label."""
    return {name for query in queries for name in re.findall(r"shoal_\w+", query)} - {"shoal_dev_model"}


def samples() -> set[str]:
    """Every sample of the operator's and the router's registries, by its name in a query."""
    router = Families().registry
    router.register(Levels(status, SpeculationStats(), dict))
    suffix = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    return {
        f"{family.name}{ending}"
        for registry in (Metrics().registry, router)
        for family in registry.collect()
        for ending in suffix.get(family.type, ())
    }


def status() -> GeneratorStatus:
    return GeneratorStatus(ready=False, detail="", max_context=0, epoch=0, running=0, waiting=0)


def test_every_metric_of_the_router_is_documented():
    documented = metrics_in([(ROOT / "docs/reference/metrics.md").read_text()])
    router = Families().registry
    router.register(Levels(status, SpeculationStats(), dict))
    suffix = {"counter": "_total"}
    ours = {f"{each.name}{suffix.get(each.type, '')}" for each in router.collect() if each.name.startswith("shoal_")}
    assert documented - {"shoal_router"} == ours
