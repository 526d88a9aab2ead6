"""The body of POST /v1/responses, and the chat request that it means."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal_router.api.errors import ApiError, from_validation
from shoal_router.api.fields import only
from shoal_router.api.requests import ChatRequest

LOGPROBS = "message.output_text.logprobs"
_Forbidding = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextOptions(BaseModel):
    """`format` as in a chat request's response_format, without the inner object that a schema has there."""

    model_config = _Forbidding

    format: dict[str, Any] | None = None
    verbosity: Annotated[str | None, only("text.verbosity", "medium")] = None


class ReasoningOptions(BaseModel):
    """How hard a model thinks is its own affair; what it thought is always told."""

    model_config = _Forbidding

    effort: Annotated[str | None, only("reasoning.effort")] = None
    summary: Annotated[str | None, only("reasoning.summary", "auto")] = None
    generate_summary: Annotated[str | None, only("reasoning.generate_summary")] = None


class ResponseRequest(BaseModel):
    """POST /v1/responses."""

    model_config = _Forbidding

    model: Annotated[str, Field(min_length=1, max_length=512)]
    input: Annotated[str | list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=128)] | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    truncation: Annotated[str | None, only("truncation", "disabled")] = None
    service_tier: Annotated[str | None, only("service_tier", "auto", "default")] = None
    background: Annotated[bool | None, only("background", False)] = None
    max_tool_calls: Annotated[Any, only("max_tool_calls")] = None
    conversation: Annotated[Any, only("conversation", instead="use 'previous_response_id'")] = None
    prompt: Annotated[Any, only("prompt")] = None
    stream_options: Annotated[Any, only("stream_options")] = None
    prompt_cache_retention: Annotated[str | None, only("prompt_cache_retention", "in_memory", "in-memory")] = None


_CHAT_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}


def chat_request(body: ResponseRequest, messages: list[dict[str, Any]]) -> ChatRequest:
    """The same request as a chat completion over `messages`. Raises ApiError in this API's names."""
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    wanted = {
        "model": body.model,
        "messages": instructions + messages,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": LOGPROBS in (body.include or ()) or None,
        "top_logprobs": body.top_logprobs if LOGPROBS in (body.include or ()) else None,
        "response_format": _response_format(body.text.format if body.text else None),
        "tools": [_chat_tool(tool) for tool in body.tools] if body.tools else None,
        "tool_choice": _chat_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls if body.tools else None,
    }
    try:
        return ChatRequest.model_validate({name: value for name, value in wanted.items() if value is not None})
    except ValidationError as error:
        raise renamed(from_validation(RequestValidationError(error.errors()))) from error


def renamed(error: ApiError) -> ApiError:
    """What a chat request was refused for, in this API's names."""
    for chat, here in _CHAT_NAMES.items():
        if error.param is not None and error.param.startswith(chat):
            error.message = error.message.replace(error.param, error.param.replace(chat, here, 1))
            error.param = error.param.replace(chat, here, 1)
    return error


def _response_format(asked: dict[str, Any] | None) -> dict[str, Any] | None:
    if asked is None or asked.get("type") != "json_schema":
        return asked
    return {"type": "json_schema", "json_schema": {name: value for name, value in asked.items() if name != "type"}}


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Functions are flat here; other tools keep their form, and are refused by it."""
    if tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _chat_choice(choice: str | dict[str, Any] | None) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {name: value for name, value in choice.items() if name != "type"}}
    return choice
