"""Pieces of an answer -> output items, and the events that tell of their growth.

Items follow each other: reasoning, text, calls, in the order in which the model writes them. One is open at a time.
"""

from __future__ import annotations

import uuid
from typing import Any, Final, Literal

from shoal_router.text.answer import Piece
from shoal_router.text.calls import CallDelta

Event = dict[str, Any]
Kind = Literal["reasoning", "message", "function_call"]

_PREFIX: Final = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_DELTA: Final = {"reasoning": "response.reasoning_text", "message": "response.output_text"}


class Output:
    """The items so far. Each event lacks only its number in the stream."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: Kind | None = None

    def add(self, piece: Piece, logprobs: list[dict[str, Any]]) -> list[Event]:
        """What a piece adds; `logprobs` are those of its text."""
        events: list[Event] = []
        if piece.reasoning:
            events += self._text("reasoning", piece.reasoning, [])
        if piece.text:
            events += self._text("message", piece.text, logprobs)
        for call in piece.calls:
            events += self._call(call)
        return events

    def close(self, status: str = "completed") -> list[Event]:
        """The open item is over."""
        if self._open is None:
            return []
        item, kind, self._open = self.items[-1], self._open, None
        item["status"] = status
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        done = {"type": "response.output_item.done", "output_index": place["output_index"], "item": item}
        if kind == "function_call":
            arguments = {"arguments": item["arguments"], "name": item["name"]}
            return [{"type": "response.function_call_arguments.done", **place, **arguments}, done]
        (part,) = item["content"]
        place["content_index"] = 0
        said = {"text": part["text"], **({"logprobs": part["logprobs"]} if kind == "message" else {})}
        return [
            {"type": f"{_DELTA[kind]}.done", **place, **said},
            {"type": "response.content_part.done", **place, "part": part},
            done,
        ]

    def _text(self, kind: Literal["reasoning", "message"], text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        events = [] if self._open == kind else self._begin_text(kind)
        item = self.items[-1]
        item["content"][0]["text"] += text
        delta = {
            "type": f"{_DELTA[kind]}.delta",
            "item_id": item["id"],
            "output_index": len(self.items) - 1,
            "content_index": 0,
            "delta": text,
        }
        if kind == "message":
            item["content"][0]["logprobs"].extend(logprobs)
            delta["logprobs"] = logprobs
        return [*events, delta]

    def _begin_text(self, kind: Literal["reasoning", "message"]) -> list[Event]:
        if kind == "message":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            begun = self._begin(kind, {"role": "assistant", "content": []})
        else:
            part = {"type": "reasoning_text", "text": ""}
            begun = self._begin(kind, {"summary": [], "content": []})
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1, "content_index": 0}
        event = {"type": "response.content_part.added", **place, "part": _copy(part)}
        item["content"].append(part)
        return [*begun, event]

    def _call(self, call: CallDelta) -> list[Event]:
        events: list[Event] = []
        if call.call_id is not None:
            facts = {"call_id": call.call_id, "name": call.name, "arguments": ""}
            events = self._begin("function_call", facts)
        item = self.items[-1]
        item["arguments"] += call.arguments
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return [*events, {"type": "response.function_call_arguments.delta", **place, "delta": call.arguments}]

    def _begin(self, kind: Kind, facts: dict[str, Any]) -> list[Event]:
        closed = self.close()
        item = {"id": f"{_PREFIX[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **facts}
        self.items.append(item)
        self._open = kind
        added = {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": _copy(item)}
        return [*closed, added]


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An event tells how an item was; the item grows on."""
    return {name: list(value) if isinstance(value, list) else value for name, value in item.items()}
