"""The JSON of answers: chat and text completions, whole and in chunks.

A chunk is sent for nearly every token of every user, so its JSON is put together from parts that were serialised once
for the request; only the new text is serialised each time. Tests hold the result against openai-python's own types.

Strings are escaped to ASCII: some SSE clients cut lines at U+2028 or U+0085, which JSON would allow to stand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from shoal_router.api.errors import ApiError
from shoal_router.api.logprobs import chat_logprobs, completion_logprobs
from shoal_router.generation import FinishReason
from shoal_router.text.answer import Piece, ScoredToken
from shoal_router.text.calls import CallDelta
from shoal_router.text.detokenize import TokenBytes

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class AnswerMeta:
    """What stands in every object of one answer."""

    answer_id: str
    created: int
    model: str
    fingerprint: str

    def fields(self, kind: str) -> dict[str, Any]:
        """The common fields, in OpenAI's order."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. A prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0

    def fields(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


@dataclass(slots=True)
class WholeChoice:
    """One choice, put together from its pieces; complete once it has `finish`. `text` begins with what is echoed."""

    index: int
    text: str = ""
    scored: list[ScoredToken] = field(default_factory=list)
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    finish: str | None = None

    def add(self, piece: Piece) -> None:
        """The next piece."""
        self.text += piece.text
        self.scored.extend(piece.scored)
        self.reasoning += piece.reasoning
        self.calls.extend(piece.calls)
        if piece.finish is not None:
            self.finish = finish_reason(piece.finish, called=piece.called)

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls in OpenAI's form."""
        made: dict[int, dict[str, Any]] = {}
        for delta in self.calls:
            if delta.call_id is not None:
                function = {"name": delta.name, "arguments": ""}
                made[delta.index] = {"id": delta.call_id, "type": "function", "function": function}
            made[delta.index]["function"]["arguments"] += delta.arguments
        return list(made.values())


def finish_reason(finish: FinishReason, *, called: bool) -> str:
    """`tool_calls` when the model ended by itself behind at least one call."""
    return "tool_calls" if called and finish is FinishReason.STOP else finish.value


class AnswerFormat(Protocol):
    """How one kind of answer looks. All methods that give bytes give complete server-sent events."""

    def opening(self, index: int, echo: str) -> bytes:
        """The first event of a choice."""
        ...

    def piece(self, index: int, piece: Piece) -> bytes:
        """The events of one piece."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """What a stream ends with, behind the last pieces."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """What a stream ends with when it cannot go on."""
        ...

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """The answer to a request without streaming."""
        ...


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


class _Chunks:
    """The serialised frame around a choice's changing part; subclasses name the kind."""

    chunk_kind: ClassVar[str]

    def __init__(self, meta: AnswerMeta, token_bytes: TokenBytes, *, logprobs: bool, include_usage: bool) -> None:
        self._meta = meta
        self._include_usage = include_usage
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        fields = json.dumps(meta.fields(self.chunk_kind), separators=(",", ":"))
        self._head = f'data: {fields[:-1]},"choices":[{{"index":'
        # OpenAI: with include_usage every other chunk has "usage": null, without it there is no such field.
        self._tail = '}],"usage":null}\n\n' if include_usage else "}]}\n\n"

    def closing(self, usage: Usage) -> bytes:
        """The chunk with no choices, if usage was asked for, and `[DONE]`."""
        if not self._include_usage:
            return DONE
        return event({**self._meta.fields(self.chunk_kind), "choices": [], "usage": usage.fields()}) + DONE

    def failure(self, error: ApiError) -> bytes:
        """The error's own body as an event, and `[DONE]`."""
        return event(error.body()) + DONE


class ChatFormat(_Chunks):
    """`chat.completion` and `chat.completion.chunk`."""

    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int, echo: str) -> bytes:
        """The role. A chat answer has no echo."""
        del echo
        return self._chunk(index, '{"role":"assistant","content":"","refusal":null}')

    def piece(self, index: int, piece: Piece) -> bytes:
        """A chunk for each part that there is, a finish chunk if this is the end. The first has all logprobs."""
        deltas = [f'{{"reasoning_content":{json.dumps(piece.reasoning)}}}'] if piece.reasoning else []
        if piece.text or (piece.scored and not piece.reasoning and not piece.calls):
            deltas.append(f'{{"content":{json.dumps(piece.text)}}}')
        deltas += [_call_delta(call) for call in piece.calls]
        logprobs = "null"
        if self._logprobs and deltas:
            logprobs = json.dumps(chat_logprobs(piece.scored, self._token_bytes), separators=(",", ":"))
        out = b""
        for delta in deltas:
            out += self._chunk(index, delta, logprobs)
            logprobs = "null"
        if piece.finish is not None:
            out += self._chunk(index, "{}", finish=f'"{finish_reason(piece.finish, called=piece.called)}"')
        return out

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """The `chat.completion` object."""
        return {
            **self._meta.fields("chat.completion"),
            "choices": [
                {
                    "index": choice.index,
                    "message": _message(choice),
                    "logprobs": chat_logprobs(choice.scored, self._token_bytes) if self._logprobs else None,
                    "finish_reason": choice.finish,
                }
                for choice in choices
            ],
            "usage": usage.fields(),
        }

    def _chunk(self, index: int, delta: str, logprobs: str = "null", finish: str = "null") -> bytes:
        changing = f'{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}'
        return (self._head + changing + self._tail).encode()


def _call_delta(call: CallDelta) -> str:
    made: dict[str, Any] = {"index": call.index}
    function = {"arguments": call.arguments}
    if call.call_id is not None:
        made |= {"id": call.call_id, "type": "function"}
        function = {"name": call.name or "", **function}
    return json.dumps({"tool_calls": [{**made, "function": function}]}, separators=(",", ":"))


def _message(choice: WholeChoice) -> dict[str, Any]:
    calls = choice.tool_calls()
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if calls:
        message |= {"content": choice.text or None, "tool_calls": calls}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    return message


class CompletionFormat(_Chunks):
    """`text_completion`, whole and in chunks."""

    chunk_kind = "text_completion"

    def opening(self, index: int, echo: str) -> bytes:
        """The echoed prompt, if any."""
        return self._chunk(index, echo) if echo else b""

    def piece(self, index: int, piece: Piece) -> bytes:
        """One chunk; the last one carries the finish reason."""
        logprobs = "null"
        if self._logprobs and piece.scored:
            logprobs = json.dumps(completion_logprobs(piece.scored, self._token_bytes), separators=(",", ":"))
        finish = "null" if piece.finish is None else f'"{piece.finish}"'
        return self._chunk(index, piece.text, logprobs, finish)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """The `text_completion` object."""
        return {
            **self._meta.fields("text_completion"),
            "choices": [
                {
                    "index": choice.index,
                    "text": choice.text,
                    "logprobs": completion_logprobs(choice.scored, self._token_bytes) if self._logprobs else None,
                    "finish_reason": choice.finish,
                }
                for choice in choices
            ],
            "usage": usage.fields(),
        }

    def _chunk(self, index: int, text: str, logprobs: str = "null", finish: str = "null") -> bytes:
        changing = f'{index},"text":{json.dumps(text)},"logprobs":{logprobs},"finish_reason":{finish}'
        return (self._head + changing + self._tail).encode()
