"""Input items of a response -> messages of a chat request.

Calls and reasoning are items of their own here, and parts of the assistant's message there.
"""

from __future__ import annotations

from typing import Any

from shoal_router.api.errors import ApiError, invalid

_TEXT_PARTS = ("input_text", "output_text", "text")


def messages_of(items: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Raises ApiError that names the item which cannot be used."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    reasoning = ""
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = item.get("type", "message")
        if kind == "reasoning":
            reasoning = _reasoning(item, where)
            continue
        match kind:
            case "message":
                messages.append({"role": item.get("role"), "content": _content(item.get("content"), where)})
            case "function_call":
                _add_call(messages, item, where)
            case "function_call_output":
                called, output = _string(item, "call_id", where), _content(item.get("output"), f"{where}.output")
                messages.append({"role": "tool", "tool_call_id": called, "content": output})
            case _:
                raise _unsupported(f"{where}.type", kind)
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("reasoning_content", reasoning)
            reasoning = ""
    return messages


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    """Calls that follow the assistant's text or another call belong to the same message."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    function = {"name": _string(item, "name", where), "arguments": _string(item, "arguments", where)}
    call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": _string(part, "text", where)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": _string(part, "refusal", where)}
    raise _unsupported(f"{where}.type", kind)


def _reasoning(item: dict[str, Any], where: str) -> str:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise invalid(f"Invalid value for '{where}.content': a list of parts is due.", param=f"{where}.content")
    return "\n".join(_string(part, "text", f"{where}.content[{number}]") for number, part in enumerate(parts))


def _string(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"'{where}.{name}' must be a string.", param=f"{where}.{name}")
    return value


def _unsupported(where: str, kind: Any) -> ApiError:
    message = f"'{where}' is {str(kind)[:64]!r}, which is not supported by this server: send text and function calls."
    return invalid(message, param=where, code="unsupported_parameter")
