"""Rules over several fields, each written once with both of its forms side by side.

A rule is a method of a resource type: its body is the check that `shoal run` and the operator make, its decorator
holds the CEL expression that the API server evaluates and the message that both show. `crd` collects the CEL forms,
`Object` runs the Python forms, and a test evaluates both on the same objects, so that they cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

Check = TypeVar("Check", bound=Callable[[Any], bool])
_MARK = "_shoal_rule"


@dataclass(frozen=True, slots=True)
class Rule:
    """One cross-field rule of an object. `field` is the member to blame, empty for the object as a whole."""

    cel: str
    message: str
    field: str
    holds: Callable[[Any], bool]


def rule(*, cel: str, message: str, field: str = "") -> Callable[[Check], Check]:
    """Mark a method as the Python form of a rule; it returns True when the rule holds."""

    def mark(check: Check) -> Check:
        setattr(check, _MARK, Rule(cel=cel, message=message, field=field, holds=check))
        return check

    return mark


class Object(BaseModel):
    """Base of every object of the resource: camelCase names, no unknown fields, no coercion, immutable.

    Attribute docstrings become the descriptions that `kubectl explain` shows.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Collect the rules that the class and its bases declare, in order of declaration."""
        found = [
            getattr(member, _MARK)
            for base in reversed(cls.__mro__)
            for member in vars(base).values()
            if hasattr(member, _MARK)
        ]
        cls.RULES = tuple(found)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The object's schema, with the CEL form of its rules."""
        described = handler.resolve_ref_schema(handler(schema))
        if cls.RULES:
            described["x-kubernetes-validations"] = [
                {"rule": each.cel, "message": each.message} | ({"fieldPath": f".{each.field}"} if each.field else {})
                for each in cls.RULES
            ]
        return described

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for each in self.RULES:
            if not each.holds(self):
                raise PydanticCustomError("rule", "{reason}", {"reason": each.message, "field": each.field})
        return self
