"""/tokenize and /detokenize, in vLLM's form: what a text or a conversation costs, and what ids say.

And /v1/embeddings, which says what to use instead: a model that writes has no embeddings worth comparing.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal_router.api.errors import ApiError, invalid
from shoal_router.api.fields import wrong
from shoal_router.api.messages import Message
from shoal_router.api.prepare import Served, check_model, encode, render
from shoal_router.api.tools import Tool

_Strict = ConfigDict(extra="forbid", strict=True, frozen=True)


class TokenizeRequest(BaseModel):
    """A `prompt`, or `messages` with their `tools`. `model` may be left out."""

    model_config = _Strict

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_text(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise wrong("Give one of 'prompt' and 'messages'.", param="prompt")
        return self


class DetokenizeRequest(BaseModel):
    """Ids of the model's vocabulary."""

    model_config = _Strict

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=2**20)]


def tokens_router(served: Served) -> APIRouter:
    """The three endpoints."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        if body.model is not None:
            check_model(body.model, served)
        if body.messages is not None:
            text, special = render(served.text, body.messages, body.tools or [], body.chat_template_kwargs), False
        else:
            text, special = body.prompt or "", body.add_special_tokens
        ids = await encode(served.text, text, add_special_tokens=special)
        return {"count": len(ids), "max_model_len": served.generator.status().max_context or None, "tokens": ids}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        if body.model is not None:
            check_model(body.model, served)
        if any(token >= served.text.vocab_size for token in body.tokens):
            raise invalid(f"Token ids go from 0 to {served.text.vocab_size - 1}.", param="tokens")
        return {"prompt": served.text.tokenizer.decode(body.tokens, skip_special_tokens=False)}

    @router.post("/v1/embeddings")
    async def embeddings() -> None:
        raise ApiError(
            400,
            "This server has no embeddings: the model that it serves writes text. Use a server with an embedding "
            "model, such as Hugging Face's text-embeddings-inference or OpenVINO Model Server, and give your client "
            "its address for embeddings.",
            code="unsupported_endpoint",
        )

    return router
