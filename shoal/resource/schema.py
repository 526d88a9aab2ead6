"""From pydantic's JSON schema to a structural schema, the form that the API server accepts in a CRD.

Structural means: every node has one type, nothing is referenced, alternatives only for int-or-string. What JSON
schema says and a structural schema cannot is either dropped because the API server does the same by itself (unknown
fields, titles, key patterns) or refused here, so that no bound gets lost unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        "description",
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "pattern",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-validations",
    }
)
# The API server prunes or refuses unknown fields by itself; the names of map entries it cannot check.
_DROPPED = frozenset({"title", "propertyNames"})


def structural_schema(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The structural schema of a resource type; with `defaults` the API server fills them in."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.pop("$defs", {})
    return _Structural(definitions, defaults).node(schema)


class _Structural:
    def __init__(self, definitions: Mapping[str, Schema], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def node(self, schema: Schema) -> Schema:
        """One node and all below it."""
        schema = self._resolved(schema)
        result: Schema = {}
        for key, value in schema.items():
            if key in _KEPT:
                result[key] = " ".join(value.split()) if key == "description" else value
            elif key == "const":
                result["enum"] = [value]
            elif key == "properties":
                required = schema.get("required", [])
                result[key] = {name: self._property(each, name in required) for name, each in value.items()}
            elif key == "required":
                result[key] = list(value)
            elif key == "items":
                result[key] = self.node(value)
            elif key == "additionalProperties":
                if isinstance(value, dict):
                    result[key] = self.node(value)
            elif key not in _DROPPED and key != "default":
                raise ValueError(f"a structural schema cannot say {key}: {value!r}")
        return {"type": result.pop("type")} | result if "type" in result else result

    def _property(self, schema: Schema, required: bool) -> Schema:
        """A member of an object, with its default.

        An object whose members have defaults gets them all as its own default: the API server checks the rules of an
        object on its default before it fills in members, so `{}` would lack what a rule reads.
        """
        result = self.node(schema)
        if not self._defaults or required:
            return result
        optional = any(each == {"type": "null"} for each in schema.get("anyOf", []))
        default = schema.get("default")
        if default not in (None, [], {}, ""):
            result["default"] = list(default) if isinstance(default, tuple) else default
        elif not optional:
            members = result.get("properties", {})
            whole = {name: deepcopy(member["default"]) for name, member in members.items() if "default" in member}
            if whole:
                result["default"] = whole
        return result

    def _resolved(self, schema: Schema) -> Schema:
        """The schema without references, and without the `null` that says "may be left out"."""
        while True:
            if "$ref" in schema:
                target = self._definitions[schema["$ref"].rsplit("/", 1)[-1]]
                schema = target | {key: value for key, value in schema.items() if key != "$ref"}
            elif "anyOf" in schema:
                (inner,) = [each for each in schema["anyOf"] if each != {"type": "null"}]
                schema = inner | {key: value for key, value in schema.items() if key != "anyOf"}
            else:
                return schema
