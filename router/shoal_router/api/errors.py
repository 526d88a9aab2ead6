"""Errors in OpenAI's form, and the one table from the router's own errors to HTTP.

    {"error": {"message": …, "type": …, "param": …, "code": …}}

Clients branch on `type` and `code` (openai-python also on the status), people read `message`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from shoal.errors import ShoalError
from shoal_router.generation import (
    ContextLengthExceeded,
    GenerationFailed,
    GrammarFailed,
    PipelineUnavailable,
    QueueFull,
)
from shoal_router.text.template import TemplateRefused

log = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class ApiError(Exception):
    """An answer that is an error. `retry_after` seconds become a Retry-After header."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The HTTP answer."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def invalid(message: str, *, param: str | None, code: str = "invalid_value") -> ApiError:
    """400: the request is wrong, at the parameter `param`."""
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(prompt_tokens: int, max_context: int, *, param: str, answer_tokens: int = 0) -> ApiError:
    """400 in the words that clients look for; both sizes are in the message."""
    asked = f"{prompt_tokens} tokens in the {param}"
    if answer_tokens:
        asked = f"{prompt_tokens + answer_tokens} tokens ({asked}, {answer_tokens} for the answer)"
    return invalid(
        f"This model's maximum context length is {max_context} tokens, prompt and answer together, "
        f"but the request needs {asked}. Shorten the {param}{' or ask for fewer tokens' if answer_tokens else ''}.",
        param=param,
        code="context_length_exceeded",
    )


def from_exception(error: Exception, *, prompt_param: str = "messages", request_id: str = "") -> ApiError:
    """The API's answer to any error behind it. What is not meant for a person is logged, and only its id told."""
    match error:
        case ApiError():
            return error
        case ContextLengthExceeded():
            return context_length_exceeded(error.prompt_tokens, error.max_context, param=prompt_param)
        case TemplateRefused():
            return invalid(str(error), param=prompt_param, code="chat_template_refused")
        case QueueFull():
            code = "rate_limit_exceeded"
            return ApiError(429, str(error), kind="rate_limit_error", code=code, retry_after=error.retry_after)
        case PipelineUnavailable():
            code = "pipeline_unavailable"
            return ApiError(503, str(error), kind=SERVER_ERROR, code=code, retry_after=error.retry_after)
        case GrammarFailed():
            return invalid(str(error), param=None, code="grammar_too_complex")
        case GenerationFailed():
            return ApiError(500, str(error), kind=SERVER_ERROR, code="generation_failed")
        case ShoalError():
            log.error("request failed: %s", error, extra={"request_id": request_id})
            return ApiError(500, str(error), kind=SERVER_ERROR, code="internal_error")
        case _:
            log.error("request failed", exc_info=error, extra={"request_id": request_id})
            hint = f": look for request {request_id} in its log" if request_id else ""
            return ApiError(500, f"The router failed{hint}.", kind=SERVER_ERROR, code="internal_error")


def from_validation(error: RequestValidationError) -> ApiError:
    """400 for the first thing that is wrong with a request's body."""
    first = error.errors()[0]
    path = [part for part in first["loc"] if part != "body"]
    context = first.get("ctx", {})
    param = context.get("param") or param_name(path)
    match first["type"]:
        case "json_invalid":
            return ApiError(
                400, f"The body is not valid JSON: {context.get('error', first['msg'])}.", code="invalid_json"
            )
        case _ if not path and not param:
            message = "The body must be a JSON object, sent with Content-Type: application/json."
            return ApiError(400, message, code="invalid_json")
        case "extra_forbidden":
            return invalid(f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter")
        case "missing":
            return invalid(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
        case "union_tag_not_found":
            return invalid(
                f"Missing required parameter: '{param}.role'.", param=f"{param}.role", code="missing_required_parameter"
            )
        case "union_tag_invalid":
            message = f"Invalid value for '{param}.role': it must be one of {context['expected_tags']}."
            return invalid(message, param=f"{param}.role")
        case "unsupported":
            return invalid(first["msg"], param=param, code="unsupported_parameter")
        case "wrong" if context.get("param"):
            return invalid(first["msg"], param=param)
        case _:
            return invalid(f"Invalid value for '{param}': {_lower_first(first['msg'])}.", param=param)


_ROLE_TAGS = frozenset({"system", "developer", "user", "assistant", "tool"})


def param_name(path: Sequence[str | int]) -> str | None:
    """`("messages", 0, "user", "content")` -> `messages[0].content`: the role that pydantic inserts is left out."""
    name = ""
    for position, part in enumerate(path):
        if isinstance(part, int):
            name += f"[{part}]"
        elif position == 2 and part in _ROLE_TAGS and path[0] == "messages":
            continue
        else:
            name += f".{part}" if name else part
    return name or None


def _lower_first(text: str) -> str:
    return (text[:1].lower() + text[1:]).rstrip(".")
