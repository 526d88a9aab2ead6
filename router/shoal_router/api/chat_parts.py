"""How a chat answer is read: which parts the model may write, for the tools that the request offers."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from shoal_router.api.errors import invalid
from shoal_router.api.requests import ChatRequest
from shoal_router.text.call_format import CallFormat
from shoal_router.text.calls import MARKERS, CallReader
from shoal_router.text.model import TextModel
from shoal_router.text.parts import PartsReader
from shoal_router.text.reasoning import BEGIN, END, ReasoningReader, begins_within


@dataclass(frozen=True, slots=True)
class ChatParts:
    """What to expect of an answer. `revealed`: special tokens that its reader must see."""

    thinks: bool
    begins_within: bool
    call_format: CallFormat | None
    tool_names: frozenset[str]
    one_call: bool
    revealed: frozenset[int]

    def reader(self) -> PartsReader | None:
        """For one answer; None when all of it is text."""
        if not self.thinks and self.call_format is None:
            return None
        reasoning = ReasoningReader(within=self.begins_within) if self.thinks else None
        calls = None
        if self.call_format is not None:
            calls = CallReader(self.call_format, self.tool_names, self._new_id, one=self.one_call)
        return PartsReader(reasoning, calls)

    def _new_id(self) -> str:
        # Mistral's templates take only calls whose ids have nine letters or digits.
        made = uuid.uuid4().hex
        return made[:9] if self.call_format is CallFormat.MISTRAL else f"call_{made[:24]}"


def parts_of(body: ChatRequest, text: TextModel, prompt: str) -> ChatParts:
    """What the answer to a request may consist of. Raises ApiError when the model cannot call tools."""
    names = frozenset(tool.function.name for tool in body.offered_tools)
    if names and text.call_format is None:
        message = "The parameter 'tools' is not supported by this model: its chat template knows no tool calls."
        raise invalid(message, param="tools", code="unsupported_parameter")
    thinks = text.template is not None and text.template.thinks
    markers = (*(MARKERS if names else ()), *((BEGIN, END) if thinks else ()))
    return ChatParts(
        thinks=thinks,
        begins_within=begins_within(prompt),
        call_format=text.call_format if names else None,
        tool_names=names,
        one_call=body.parallel_tool_calls is False,
        revealed=text.token_ids(markers),
    )
