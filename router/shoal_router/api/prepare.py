"""From a valid request to a Job: limits, prompt text, token ids, the context's size, one Choice per sequence."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import Scope

from shoal_router.api.answers import Job
from shoal_router.api.chat_parts import parts_of
from shoal_router.api.constrained import checked, constraint_of
from shoal_router.api.edge import key_of, request_id_of
from shoal_router.api.errors import ApiError, context_length_exceeded, invalid
from shoal_router.api.formats import AnswerFormat, AnswerMeta, ChatFormat, CompletionFormat
from shoal_router.api.messages import Message, for_template
from shoal_router.api.requests import ChatRequest, CompletionRequest
from shoal_router.api.running import Choice
from shoal_router.api.sampling import sampling_params, seed_of_choice
from shoal_router.api.tools import Tool
from shoal_router.constrain.check import GrammarCheck
from shoal_router.generation import GenerationRequest, Generator
from shoal_router.settings import ApiSettings
from shoal_router.text.answer import AnswerText
from shoal_router.text.model import TextModel

# Tokenising longer texts takes milliseconds, in which no other user's tokens would go out; the library frees the GIL.
_ENCODE_IN_THREAD_CHARS = 2048


@dataclass(frozen=True, slots=True)
class Served:
    """What the endpoints stand on. `created`: when the model was loaded, Unix seconds."""

    generator: Generator
    text: TextModel
    settings: ApiSettings
    created: int
    grammars: GrammarCheck | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its ids, and the text that an answer with echo begins with."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the id of the request, and the API key's short name."""

    request_id: str
    key: str


def caller_of(scope: Scope) -> Caller:
    """Who sent a request."""
    return Caller(request_id_of(scope), key_of(scope))


async def chat_job(body: ChatRequest, served: Served, caller: Caller, layout: AnswerFormat | None = None) -> Job:
    """Render and tokenise the messages. Without a `layout`, a chat completion. Raises ApiError, TemplateRefused."""
    check_model(body.model, served)
    if len(body.messages) > served.settings.max_messages:
        raise invalid(f"At most {served.settings.max_messages} messages, got {len(body.messages)}.", param="messages")
    text = render(served.text, body.messages, body.offered_tools, body.chat_template_kwargs)
    parts = parts_of(body, served.text, text)
    grammar = await checked(constraint_of(body, served.text, text), served.grammars)

    def answer(stop_ids: frozenset[int]) -> AnswerText:
        detokenizer = served.text.detokenizer(begins_text=True, revealed=parts.revealed)
        return AnswerText(detokenizer, body.stop, stop_ids, parts.reader())

    prompt = Prompt(await encode(served.text, text, add_special_tokens=False), text)
    layout = layout or ChatFormat(
        _meta("chatcmpl", body.model, served),
        served.text.token_bytes,
        logprobs=body.alternatives is not None,
        include_usage=body.include_usage,
    )
    choices = _choices(body, [prompt], served, caller, answer, grammar, param="messages")
    return Job(caller.request_id, (len(prompt.ids),), choices, layout, "messages")


async def completion_job(body: CompletionRequest, served: Served, caller: Caller) -> Job:
    """Tokenise the prompts. Raises ApiError."""
    check_model(body.model, served)
    if len(body.prompt) > served.settings.max_prompts:
        raise invalid(f"At most {served.settings.max_prompts} prompts, got {len(body.prompt)}.", param="prompt")
    prompts = [await _prompt(prompt, body, served.text) for prompt in body.prompt]
    grammar = await checked(constraint_of(body, served.text, ""), served.grammars)

    def answer(stop_ids: frozenset[int]) -> AnswerText:
        return AnswerText(served.text.detokenizer(begins_text=False), body.stop, stop_ids)

    meta = _meta("cmpl", body.model, served)
    layout = CompletionFormat(
        meta, served.text.token_bytes, logprobs=body.alternatives is not None, include_usage=body.include_usage
    )
    choices = _choices(body, prompts, served, caller, answer, grammar, param="prompt")
    lengths = tuple(len(prompt.ids) for prompt in prompts)
    return Job(caller.request_id, lengths, choices, layout, "prompt")


def check_model(name: str, served: Served) -> None:
    """Raises 404 in OpenAI's words unless the name is served."""
    names = served.settings.served_names
    if name not in names:
        message = f"The model '{name[:128]}' does not exist. This server has: {', '.join(names)}."
        raise ApiError(404, message, param="model", code="model_not_found")


def render(
    text: TextModel, messages: Sequence[Message], tools: Sequence[Tool], variables: dict[str, Any] | None
) -> str:
    """The prompt of a conversation. Raises TemplateRefused."""
    return text.render_chat(
        [for_template(message) for message in messages],
        tools=[tool.for_template() for tool in tools] or None,
        variables=variables,
    )


async def encode(text_model: TextModel, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    if len(text) < _ENCODE_IN_THREAD_CHARS:
        return text_model.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(text_model.encode, text, add_special_tokens=add_special_tokens)


async def _prompt(prompt: str | tuple[int, ...], body: CompletionRequest, text: TextModel) -> Prompt:
    if isinstance(prompt, str):
        ids = await encode(text, prompt, add_special_tokens=True)
        if not ids:
            raise invalid("The prompt is empty: there is nothing to continue.", param="prompt")
        return Prompt(ids, prompt)
    if not all(0 <= token_id < text.vocab_size for token_id in prompt):
        raise invalid(f"Token ids in 'prompt' go from 0 to {text.vocab_size - 1}.", param="prompt")
    return Prompt(prompt, text.decode(prompt) if body.echo else "")


def _choices(
    body: ChatRequest | CompletionRequest,
    prompts: Sequence[Prompt],
    served: Served,
    caller: Caller,
    answer: Callable[[frozenset[int]], AnswerText],
    grammar: str,
    *,
    param: str,
) -> tuple[Choice, ...]:
    """n sequences for each prompt, numbered as OpenAI numbers them."""
    n = body.n or 1
    _check_limits(body, n * len(prompts), served.settings)
    for prompt in prompts:
        _check_context(len(prompt.ids), body.answer_tokens, served.generator.status().max_context, param)
    params = sampling_params(body, served.text, grammar)
    stop_ids = frozenset[int]() if body.ignore_eos else served.text.stop_token_ids
    stop_ids |= _stop_token_ids(body, served.text)
    choices = []
    for index in range(n * len(prompts)):
        prompt_index, choice = divmod(index, n)
        prompt = prompts[prompt_index]
        request = GenerationRequest(
            request_id=caller.request_id,
            prompt=prompt.ids,
            params=replace(params, seed=seed_of_choice(params.seed, choice)),
            max_tokens=body.answer_tokens,
            stop_token_ids=stop_ids,
            group=caller.key,
        )
        echo = prompt.text if isinstance(body, CompletionRequest) and body.echo else ""
        choices.append(
            Choice(index, prompt_index, answer(stop_ids), request if body.answer_tokens != 0 else None, echo)
        )
    return tuple(choices)


def _stop_token_ids(body: ChatRequest | CompletionRequest, text: TextModel) -> frozenset[int]:
    ids = frozenset(body.stop_token_ids or ())
    if ids and max(ids) >= text.vocab_size:
        raise invalid(f"Token ids in 'stop_token_ids' go from 0 to {text.vocab_size - 1}.", param="stop_token_ids")
    return ids


def _check_limits(body: ChatRequest | CompletionRequest, choices: int, settings: ApiSettings) -> None:
    if choices > settings.max_choices:
        raise invalid(
            f"One request may ask for {settings.max_choices} answers, this one asks for {choices}.", param="n"
        )
    if len(body.stop) > settings.max_stops:
        raise invalid(f"At most {settings.max_stops} stop strings, got {len(body.stop)}.", param="stop")
    if any(len(stop) > settings.max_stop_chars for stop in body.stop):
        raise invalid(f"A stop string may have {settings.max_stop_chars} characters.", param="stop")


def _check_context(prompt_tokens: int, answer_tokens: int | None, max_context: int, param: str) -> None:
    """Both must fit, as at OpenAI: an answer that ends early for lack of room is not what was asked for."""
    if not max_context:  # no pipeline was open yet; the generator says so
        return
    wanted = 1 if answer_tokens is None else answer_tokens
    if prompt_tokens + wanted > max_context:
        raise context_length_exceeded(prompt_tokens, max_context, param=param, answer_tokens=answer_tokens or 0)


def _meta(prefix: str, model: str, served: Served) -> AnswerMeta:
    fingerprint = f"fp_{served.text.digest[:10]}_{served.generator.status().epoch}"
    return AnswerMeta(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model, fingerprint)
