"""Bounded strings, maps and quantities: the API server prices CEL rules by these bounds and refuses unbounded ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

SUBDOMAIN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
QUANTITY = r"^([0-9]+)(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_SCALE = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** (power + 1) for power, unit in enumerate(["k", "M", "G", "T", "P"])},
    **{unit: Decimal(1024) ** (power + 1) for power, unit in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi"])},
}

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=SUBDOMAIN)]
ImageReference = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^\S+$")]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
Annotations = Annotated[dict[LabelKey, AnnotationValue], Field(max_length=32)]


@dataclass(frozen=True, slots=True)
class Unique:
    """Annotation of a list whose items must differ: as a whole, or by the field `key` (then it is a map by that field).

    The API server checks it by x-kubernetes-list-type, pydantic by the validator added here.
    """

    key: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """The list's own validation, then the check."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The list's own schema with the list type."""
        by_key = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}
        return handler(schema) | (by_key if self.key else {"x-kubernetes-list-type": "set"})

    def _checked(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [getattr(item, self.key) if self.key else item for item in items]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise ValueError(f"{name} is listed twice")
        return items


Sha256Hex = Annotated[str, StringConstraints(min_length=64, max_length=64, pattern=r"^[0-9a-f]{64}$")]


def _is_quantity(value: object) -> int | str:
    if isinstance(value, int | str) and not isinstance(value, bool) and re.fullmatch(QUANTITY, str(value)):
        return value
    raise ValueError(f"{value!r} is no quantity: write an integer, or a string such as 6Gi, 512Mi or 500m")


# The API server's own form of a quantity: an integer or a string, checked by a pattern.
Quantity = Annotated[
    int | str,
    PlainValidator(_is_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY, "maxLength": 32}),
]


def quantity_bytes(value: int | str) -> int:
    """The whole number of units (bytes, or cores rounded down) that a quantity names: `6Gi` is 6442450944."""
    text = str(_is_quantity(value))
    number = text.rstrip("mkKMGTPi")
    return int(Decimal(number) * _SCALE[text[len(number) :]])
