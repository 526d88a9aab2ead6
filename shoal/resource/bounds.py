"""Bounded strings, maps and quantities: the API server prices CEL rules by these bounds and refuses unbounded ones."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, JsonValue, PlainValidator, StringConstraints, WithJsonSchema

LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
QUANTITY = r"^([0-9]+)(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_SCALE = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** (power + 1) for power, unit in enumerate(["k", "M", "G", "T", "P"])},
    **{unit: Decimal(1024) ** (power + 1) for power, unit in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi"])},
}

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=SUBDOMAIN)]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=LABEL)]
ImageReference = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^\S+$")]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
Annotations = Annotated[dict[LabelKey, AnnotationValue], Field(max_length=32)]
T = TypeVar("T")


def _unique(items: tuple[T, ...]) -> tuple[T, ...]:
    for at, item in enumerate(items):
        if item in items[:at]:
            raise ValueError(f"{item} is listed twice")
    return items


# Lists that the API server checks for repeated items: by the whole item, or by one of its fields.
SetOf = Annotated[tuple[T, ...], AfterValidator(_unique), Field(json_schema_extra={"x-kubernetes-list-type": "set"})]


def unique_by(key: str) -> AfterValidator:
    """Refuse two items with the same `key` (the Python form of `map_by`)."""

    def check(items: tuple[T, ...]) -> tuple[T, ...]:
        _unique(tuple(getattr(item, key) for item in items))
        return items

    return AfterValidator(check)


def map_by(key: str) -> dict[str, JsonValue]:
    """Schema of a list that is a map by `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


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
    number = text.rstrip("mkMGTPi")
    return int(Decimal(number) * _SCALE[text[len(number) :]])
