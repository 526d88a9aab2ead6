"""Writes docs/reference/sharded-model.md from the CRD: `python -m shoal.resource.reference PAGE`.

One table for each object of the spec and the status: field, type, default, meaning. A test generates it anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.resource.crd import crd

_INTRO = """# ShardedModel

Generated from `shoal/resource` by `make generate`; do not edit. `shoal.dev/v1alpha1`, kind `ShardedModel`, short name
`smodel`. A field in **bold** must be given. The same form serves `shoal run` on one machine and the operator in a
cluster.
"""


def reference() -> str:
    """The page."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts = [_INTRO]
    for half in ("spec", "status"):
        parts += _tables(half, schema[half])
    return "\n".join(parts)


def _tables(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The object's own table, then those of the objects in it."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    lines = [f"## `{path}`", "", _text(schema), "", "| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in properties.items():
        shown = f"**{name}**" if name in required else name
        default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        lines.append(f"| {shown} | {_type(field)} | {default} | {_text(field)} |")
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    if rules:
        lines += ["", "Rules: " + "; ".join(_escape(rule) for rule in rules) + "."]
    yield "\n".join([*lines, ""])
    for name, field in properties.items():
        inner = field.get("items", field)
        if inner.get("properties"):
            yield from _tables(f"{path}.{name}" + ("[]" if field is not inner else ""), inner)


def _type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    kind = str(field.get("type", "integer or string" if field.get("x-kubernetes-int-or-string") else "any"))
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if kind == "object" and "additionalProperties" in field:
        return f"map to {_type(field['additionalProperties'])}"
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low:g} to {high:g}"
    return kind if low is None else f"{kind}, {low:g} or more"


def _text(field: Mapping[str, Any]) -> str:
    return _escape(" ".join(str(field.get("description", "")).split()))


def _escape(text: str) -> str:
    """Table cells end at a bar, and what looks like a tag must not become one."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(reference(), encoding="utf-8")
