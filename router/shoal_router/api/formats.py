"""The JSON of answers: chat and text completions, whole and in chunks.

A chunk is sent for nearly every token of every user, so its JSON is put together from parts that were serialised once
for the request; only the new text is serialised each time. Tests hold the result against openai-python's own types.

Strings are escaped to ASCII: some SSE clients cut lines at U+2028 or U+0085, which JSON would allow to stand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from shoal_router.api.logprobs import chat_logprobs, completion_logprobs
from shoal_router.generation import FinishReason
from shoal_router.text.answer import Piece, ScoredToken
from shoal_router.text.detokenize import TokenBytes


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

    def fields(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class WholeChoice:
    """One finished choice."""

    index: int
    text: str
    scored: tuple[ScoredToken, ...]
    finish: FinishReason


class AnswerFormat(Protocol):
    """How one kind of answer looks. All methods that give bytes give complete server-sent events."""

    def opening(self, index: int, echo: str) -> bytes:
        """The first event of a choice."""
        ...

    def piece(self, index: int, piece: Piece) -> bytes:
        """The events of one piece."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The last event when usage was asked for."""
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
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        fields = json.dumps(meta.fields(self.chunk_kind), separators=(",", ":"))
        self._head = f'data: {fields[:-1]},"choices":[{{"index":'
        # OpenAI: with include_usage every other chunk has "usage": null, without it there is no such field.
        self._tail = '}],"usage":null}\n\n' if include_usage else "}]}\n\n"

    def usage(self, usage: Usage) -> bytes:
        """The chunk with no choices."""
        return event({**self._meta.fields(self.chunk_kind), "choices": [], "usage": usage.fields()})


class ChatFormat(_Chunks):
    """`chat.completion` and `chat.completion.chunk`."""

    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int, echo: str) -> bytes:
        """The role. A chat answer has no echo."""
        del echo
        return self._chunk(index, '{"role":"assistant","content":"","refusal":null}')

    def piece(self, index: int, piece: Piece) -> bytes:
        """A content chunk if there is text, a finish chunk if this is the end."""
        out = b""
        if piece.text or piece.scored:
            logprobs = "null"
            if self._logprobs:
                logprobs = json.dumps(chat_logprobs(piece.scored, self._token_bytes), separators=(",", ":"))
            out = self._chunk(index, f'{{"content":{json.dumps(piece.text)}}}', logprobs)
        if piece.finish is not None:
            out += self._chunk(index, "{}", finish=f'"{piece.finish}"')
        return out

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """The `chat.completion` object."""
        return {
            **self._meta.fields("chat.completion"),
            "choices": [
                {
                    "index": choice.index,
                    "message": {"role": "assistant", "content": choice.text, "refusal": None},
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
