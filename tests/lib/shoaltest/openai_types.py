"""openai-python's own types as judges of answers. They take seconds to import: whoever judges nothing does not wait."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter


def as_openai(kind: str, value: Any, **how: Any) -> Any:
    """The value as `openai.types.<kind>`, validated as `how` says; pydantic's ValidationError where it is none."""
    return _type(kind).validate_python(value, **how)


@cache
def _type(kind: str) -> TypeAdapter[Any]:
    import openai

    found: Any = openai.types
    for name in kind.split("."):
        found = getattr(found, name)
    return TypeAdapter(found)
