"""The response object, whole and as a stream of events: an AnswerFormat like those of the other endpoints."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from shoal_router.api.errors import ApiError
from shoal_router.api.formats import Usage, WholeChoice
from shoal_router.api.logprobs import chat_logprobs
from shoal_router.api.responses.output import Event, Output
from shoal_router.api.responses.request import LOGPROBS, ResponseRequest
from shoal_router.generation import FinishReason
from shoal_router.text.answer import Piece
from shoal_router.text.detokenize import TokenBytes


class ResponseLayout:
    """One response as it grows. `finished` is told of it when it has ended by itself."""

    def __init__(
        self, body: ResponseRequest, token_bytes: TokenBytes, finished: Callable[[dict[str, Any]], None]
    ) -> None:
        self._body = body
        self._token_bytes = token_bytes
        self._finished = finished
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._output = Output()
        self._events = 0
        self._cut = False

    def opening(self, index: int, echo: str) -> bytes:
        """The response that has begun."""
        del index, echo
        begun = self._response("in_progress")
        return self._encode(
            [{"type": kind, "response": begun} for kind in ("response.created", "response.in_progress")]
        )

    def piece(self, index: int, piece: Piece) -> bytes:
        """The events of one piece."""
        del index
        return self._encode(self._add(piece))

    def closing(self, usage: Usage) -> bytes:
        """The finished response."""
        response = self._end(usage)
        return self._encode([{"type": f"response.{response['status']}", "response": response}])

    def failure(self, error: ApiError) -> bytes:
        """The response that failed."""
        failed = self._response("failed") | {"error": {"code": "server_error", "message": error.message}}
        return self._encode([{"type": "response.failed", "response": failed}])

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """The response object."""
        (choice,) = choices
        finish = FinishReason.LENGTH if choice.finish == FinishReason.LENGTH else FinishReason.STOP
        self._add(Piece(choice.text, tuple(choice.scored), finish, choice.reasoning, tuple(choice.calls)))
        return self._end(usage)

    def _add(self, piece: Piece) -> list[Event]:
        entries = chat_logprobs(piece.scored, self._token_bytes)["content"] if piece.scored else []
        events = self._output.add(piece, entries)
        if piece.finish is not None:
            self._cut = piece.finish is FinishReason.LENGTH
            events += self._output.close("incomplete" if self._cut else "completed")
        return events

    def _end(self, usage: Usage) -> dict[str, Any]:
        response = self._response("incomplete" if self._cut else "completed", usage)
        self._finished(response)
        return response

    def _encode(self, events: list[Event]) -> bytes:
        out = b""
        for event in events:
            numbered = event | {"sequence_number": self._events}
            self._events += 1
            out += f"event: {event['type']}\ndata: {json.dumps(numbered, separators=(',', ':'))}\n\n".encode()
        return out

    def _response(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": list(self._output.items),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs if LOGPROBS in (body.include or ()) else 0,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": _usage(usage) if usage is not None else None,
            "user": body.user,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
