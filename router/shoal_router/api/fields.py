"""Building blocks of the request schemas: refusals by name, and fields that OpenAI accepts in several forms.

A parameter that shoal does not serve stays in the schema, with the values that change nothing. Anything else is
refused with the parameter's name: never silently ignored.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator
from pydantic_core import PydanticCustomError


def unsupported(message: str, param: str | None = None) -> PydanticCustomError:
    """The error that becomes 400 with code `unsupported_parameter`. `param`: when it is not the field at hand."""
    # The message is a value, not a template: braces in it must stay as they are.
    return PydanticCustomError("unsupported", "{message}", {"message": message, "param": param})


def wrong(message: str, param: str | None = None) -> PydanticCustomError:
    """The error that becomes 400 with code `invalid_value`. `param`: when it is not the field at hand."""
    return PydanticCustomError("wrong", "{message}", {"message": message, "param": param})


def only(name: str, *neutral: Any, instead: str = "") -> BeforeValidator:
    """Accept null and the `neutral` values, refuse every other value of the parameter `name`."""

    def check(value: Any) -> Any:
        # True == 1 in Python, but not in JSON.
        if value is None or any(value == good and type(value) is type(good) for good in neutral):
            return value
        raise unsupported(f"The parameter '{name}' is not supported by this server{f': {instead}' if instead else ''}.")

    return BeforeValidator(check)


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Literal["text"]
    text: str


def _text(value: Any, *, optional: bool) -> str | None:
    """A message's content as one string. Text parts are joined by line breaks: they are separate paragraphs."""
    if value is None and optional:
        return None
    if isinstance(value, str):
        return _unicode(value)
    if not isinstance(value, list):
        raise wrong(f"expected a string or a list of text parts, got {json_kind(value)}")
    return "\n".join(_part_text(number, part) for number, part in enumerate(value))


def _part_text(number: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        if isinstance(kind, str):
            raise unsupported(f"Content part {number} is of type '{kind[:64]}', but this model reads text only.")
        raise wrong(f'part {number} must be {{"type": "text", "text": "…"}}')
    if not isinstance(part.get(kind), str):
        raise wrong(f"part {number} has no string '{kind}'")
    if unknown := set(part) - {"type", kind}:
        raise unsupported(f"Content part {number} has a field '{min(unknown)[:64]}' that this server does not know.")
    return _unicode(part[kind])


def _unicode(text: str) -> str:
    """JSON can spell half a surrogate pair, which is no text: it has no bytes that a tokenizer could read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong("the text holds half of a surrogate pair, which is not valid Unicode") from None
    return text


def json_kind(value: Any) -> str:
    """What JSON calls the value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong("expected a string or a list of strings")
    if not all(stops):
        raise wrong("a stop string must not be empty")
    return tuple(_unicode(stop) for stop in stops)


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """All forms of a completion's prompt as a tuple of texts and id sequences."""
    if isinstance(value, str):
        return (_unicode(value),)
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return tuple(_unicode(item) for item in value)
        if all(type(item) is int for item in value):
            return (tuple(value),)
        if all(isinstance(item, list) and item and all(type(i) is int for i in item) for item in value):
            return tuple(tuple(item) for item in value)
    raise wrong("expected a string, a list of strings, a list of token ids or a list of such lists, and not empty")


_PROMPT_SHAPES = str | list[str] | list[int] | list[list[int]]

RequiredText = PlainValidator(lambda value: _text(value, optional=False), json_schema_input_type=str | list[TextPart])
OptionalText = PlainValidator(
    lambda value: _text(value, optional=True), json_schema_input_type=str | list[TextPart] | None
)
StopStrings = PlainValidator(_stops, json_schema_input_type=str | list[str] | None)
Prompts = PlainValidator(_prompts, json_schema_input_type=_PROMPT_SHAPES)
