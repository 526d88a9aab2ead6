"""What the OpenAPI document says of answers; requests describe themselves.

Answers are put together by hand, since a chunk is sent for nearly every token; what stands here of them is what every
client may count on. A test calls each endpoint with what the document allows and holds the answers against it.
"""

from __future__ import annotations

from typing import Any, Final

_NULLABLE_STRING: Final = {"anyOf": [{"type": "string"}, {"type": "null"}]}

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE_STRING,
                "code": _NULLABLE_STRING,
            },
        }
    },
}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": _json("The request is wrong, or not allowed now.", _ERROR),
    "5XX": _json("The server cannot answer.", _ERROR),
}


def answer(kind: str, *required: str) -> dict[int | str, dict[str, Any]]:
    """An object of the kind that its `object` names, with usage; as server-sent events when a stream was asked for."""
    schema = {
        "type": "object",
        "required": ["id", "object", "model", "usage", *required],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": kind},
            "model": {"type": "string"},
            "usage": {"type": "object", "required": ["total_tokens"]},
        },
    }
    said = _json("The answer; a stream of server-sent events if `stream` is true.", schema)
    said["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {200: said}
