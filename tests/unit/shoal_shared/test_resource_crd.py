"""The CRD: generated, committed, structural and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field

from shoal.resource.crd import CRD_PATH, crd, crd_yaml, main
from shoal.resource.schema import structural_schema

VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
TYPES = {"array", "boolean", "integer", "number", "object", "string"}
ALLOWED = {
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-validations",
}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of the schema with its path."""
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


NODES = list(nodes(SCHEMA))
OURS = [(path, node) for path, node in NODES if path.startswith((".spec", ".status"))]


def test_the_committed_file_is_what_the_types_say() -> None:
    assert CRD_PATH.read_text(encoding="utf-8") == crd_yaml(), "run `python -m shoal.resource.crd`"
    assert yaml.safe_load(crd_yaml()) == crd()


def test_check_tells_a_stale_file_from_a_fresh_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "crds" / "crd.yaml"
    assert main(["--output", str(path), "--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert main(["--output", str(path)]) == 0
    assert main(["--output", str(path), "--check"]) == 0
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert main(["--output", str(path), "--check"]) == 1
    assert [each.name for each in path.parent.iterdir()] == ["crd.yaml"]


@pytest.mark.parametrize(("path", "node"), NODES, ids=[path or "object" for path, _ in NODES])
def test_every_node_is_structural(path: str, node: dict[str, Any]) -> None:
    assert set(node) <= ALLOWED
    if node.get("x-kubernetes-int-or-string"):
        assert "type" not in node
    else:
        assert node["type"] in TYPES
    assert not ("properties" in node and "additionalProperties" in node)
    if node.get("x-kubernetes-list-type") == "map":
        keys = node["x-kubernetes-list-map-keys"]
        assert set(keys) <= set(node["items"]["required"])
    for rule in node.get("x-kubernetes-validations", []):
        assert rule["message"]
        target = node
        for part in rule.get("fieldPath", "").split(".")[1:]:
            target = target["properties"][part]


@pytest.mark.parametrize(("path", "node"), OURS, ids=[path for path, _ in OURS])
def test_every_list_map_and_string_is_bounded(path: str, node: dict[str, Any]) -> None:
    """The API server prices CEL rules by these bounds, and refuses what may be too long."""
    if node.get("type") == "array":
        assert node["maxItems"] <= 256
    if "additionalProperties" in node:
        assert node["maxProperties"] <= 256
    if node.get("type") == "string":
        assert "maxLength" in node or "enum" in node
    if node.get("type") == "integer":
        assert "maximum" in node or "enum" in node or node.get("format") == "int64"


def test_defaults_are_values_of_their_own_schema() -> None:
    for path, node in OURS:
        default = node.get("default")
        if "enum" in node and default is not None:
            assert default in node["enum"], path
        if isinstance(default, int) and not isinstance(default, bool):
            assert node.get("minimum", default) <= default <= node.get("maximum", default), path


def test_the_api_server_fills_in_what_the_types_fill_in() -> None:
    properties = SCHEMA["properties"]["spec"]["properties"]
    assert properties["precision"]["default"] == "INT4"
    assert properties["devices"]["default"] == ["GPU"]
    assert properties["scheduler"]["default"]["streams"] == 4
    assert properties["scheduler"]["default"]["speculative"] == {"mode": "Auto", "maxTokens": 8}
    assert "default" not in properties["model"]
    assert not any("default" in node for path, node in NODES if path.startswith(".status"))


def test_kubectl_sees_columns_scale_and_short_name() -> None:
    columns = {column["name"]: column for column in VERSION["additionalPrinterColumns"]}
    narrow = [name for name, column in columns.items() if column.get("priority", 0) == 0]
    wide = [name for name, column in columns.items() if column.get("priority", 0) == 1]
    assert narrow == ["READY", "REASON", "STAGES", "URL", "AGE"]
    assert wide == ["TOK/S", "MEASURED", "DEVICE", "PLAN"]
    assert crd()["spec"]["names"]["shortNames"] == ["smodel"]
    paths = {path for path, _ in NODES}
    for path in VERSION["subresources"]["scale"].values():
        assert path in paths
    for column in columns.values():
        plain = column["jsonPath"].split("[")[0]
        assert plain in paths or plain == ".metadata.creationTimestamp"


def test_conditions_are_a_map_by_type() -> None:
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert conditions["items"]["required"] == ["type", "status", "reason", "lastTransitionTime"]


def test_case_42_manual_layers_are_a_field_of_the_resource() -> None:
    stages = SCHEMA["properties"]["spec"]["properties"]["stages"]["properties"]
    assert set(stages["manual"]["items"]["properties"]["layers"]["properties"]) == {"first", "last"}


def test_a_bound_that_a_crd_cannot_say_is_refused_not_lost() -> None:
    class Open(BaseModel):
        below: int = Field(lt=3)

    with pytest.raises(ValueError, match="a structural schema cannot say exclusiveMaximum"):
        structural_schema(Open, defaults=True)
