"""The messages of a chat request, and the form in which the chat template gets them.

Lenient where OpenAI is: histories come back from clients with every field that an answer ever had, as null. Strict
where something would be lost: content that is not text is refused by its type.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shoal_router.api.fields import OptionalText, RequiredText, only, wrong

Name = Annotated[str, Field(min_length=1, max_length=256)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SystemMessage(_Message):
    """Instructions. `developer` is what OpenAI calls `system` since 2024; templates mostly know `system` only."""

    role: Literal["system", "developer"]
    content: Annotated[str, RequiredText]
    name: Name | None = None


class UserMessage(_Message):
    """What the person says."""

    role: Literal["user"]
    content: Annotated[str, RequiredText]
    name: Name | None = None


def _json_object(text: str) -> str:
    try:
        arguments = json.loads(text) if text else {}
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # not JSON, NaN, or half of a surrogate pair
        arguments = None
    if not isinstance(arguments, dict):
        raise wrong("the arguments of a tool call must be a JSON object in a string")
    return text


class FunctionCall(_Message):
    """Name and arguments (a JSON object in a string) of a tool call."""

    name: Name
    arguments: Annotated[str, AfterValidator(_json_object)]


class ToolCall(_Message):
    """A call that the assistant made earlier in the conversation."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class AssistantMessage(_Message):
    """An earlier answer. `content` may be absent, null or empty, with and without tool calls."""

    role: Literal["assistant"]
    content: Annotated[str | None, OptionalText] = None
    name: Name | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any] | None, only("annotations", [])] = None
    audio: Annotated[Any, only("audio")] = None
    function_call: Annotated[Any, only("function_call", instead="use tool_calls")] = None


class ToolMessage(_Message):
    """What a tool answered."""

    role: Literal["tool"]
    content: Annotated[str, RequiredText]
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Name | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def for_template(message: Message) -> dict[str, Any]:
    """The message as chat templates read it: no null fields beside content, arguments of calls as an object.

    Templates write arguments with `tojson`, which would quote a string twice.
    """
    rendered = message.model_dump(exclude_none=True)
    rendered.setdefault("content", None)
    refusal = rendered.pop("refusal", None)
    if refusal and not rendered["content"]:
        rendered["content"] = refusal
    rendered.pop("annotations", None)
    calls = rendered.pop("tool_calls", None)
    if calls:  # templates ask whether the key is there, so an empty list must not be
        for call in calls:
            call.pop("index", None)
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
        rendered["tool_calls"] = calls
    return rendered
