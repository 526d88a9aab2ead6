"""The bodies of /v1/chat/completions and /v1/completions: every parameter works, or is refused by name.

Beside OpenAI's parameters: top_k, min_p, repetition_penalty, ignore_eos, stop_token_ids and chat_template_kwargs,
spelled as vLLM and its clients spell them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal_router.api.fields import Prompts, StopStrings, only, unsupported, wrong
from shoal_router.api.messages import Message
from shoal_router.api.tools import Tool, ToolChoice, ToolChoiceField, check_tools
from shoal_router.text.template import RESERVED_VARIABLES

INT64 = 2**63


class StreamOptions(BaseModel):
    """Options of a stream. Obfuscation (random padding against traffic analysis) is not done."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, only("stream_options.include_obfuscation", False)] = None


class JsonSchema(BaseModel):
    """response_format.json_schema. The schema is always held to in full, so `strict` changes nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """What a chat answer must be."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise wrong(
                "'response_format.json_schema' goes with the type 'json_schema', and only with it.",
                param="response_format.json_schema",
            )
        return self


class GenerationParameters(BaseModel):
    """What both requests share. None means: the model's generation_config.json, else OpenAI's default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())

    model: Annotated[str, Field(min_length=1, max_length=512)]

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1, description="0 and -1: off")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None

    max_tokens: Annotated[int, Field(ge=0)] | None = None
    stop: Annotated[tuple[str, ...], StopStrings] = ()
    stop_token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=64, strict=False)] | None = None
    ignore_eos: bool | None = None

    # Beyond OpenAI: what the answer must be. In response_format's stead.
    grammar: Annotated[str, Field(min_length=1)] | None = None
    regex: Annotated[str, Field(min_length=1)] | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Labels for the caller's own bookkeeping; they change nothing in an answer, at OpenAI neither.
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> GenerationParameters:
        if self.stream_options is not None and not self.stream:
            raise wrong("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        return self

    @model_validator(mode="after")
    def _one_constraint(self) -> GenerationParameters:
        if self.grammar is not None and self.regex is not None:
            raise wrong("'grammar' and 'regex' are two constraints of one answer: send one of them.", param="regex")
        if self.ignore_eos and (self.grammar is not None or self.regex is not None):
            raise wrong("'ignore_eos' is not allowed where a grammar says when the answer ends.", param="ignore_eos")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether the stream's last chunk is the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(GenerationParameters):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Annotated[ToolChoice | None, ToolChoiceField] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Any] | None, only("functions", [], instead="use 'tools'")] = None
    function_call: Annotated[str | None, only("function_call", "none", "auto", instead="use 'tool_choice'")] = None
    chat_template_kwargs: dict[str, Any] | None = None
    store: Annotated[bool | None, only("store", False, instead="answers are not kept")] = None
    service_tier: Annotated[str | None, only("service_tier", "auto", "default")] = None
    modalities: Annotated[list[str] | None, only("modalities", ["text"], instead="answers are text only")] = None
    reasoning_effort: Annotated[str | None, only("reasoning_effort")] = None
    verbosity: Annotated[str | None, only("verbosity", "medium")] = None
    audio: Annotated[Any, only("audio")] = None
    prediction: Annotated[Any, only("prediction")] = None
    web_search_options: Annotated[Any, only("web_search_options")] = None
    prompt_cache_retention: Annotated[str | None, only("prompt_cache_retention", "in_memory", "in-memory")] = None

    @model_validator(mode="after")
    def _parameters_agree(self) -> ChatRequest:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            message = "'max_tokens' and 'max_completion_tokens' differ: send one of them."
            raise wrong(message, param="max_completion_tokens")
        if self.top_logprobs and not self.logprobs:
            raise wrong("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
        check_tools(self.tools or [], self.tool_choice, self.parallel_tool_calls)
        if taken := RESERVED_VARIABLES & (self.chat_template_kwargs or {}).keys():
            message = f"'chat_template_kwargs' cannot set '{min(taken)}'."
            raise wrong(message, param="chat_template_kwargs")
        other = "grammar" if self.grammar is not None else "regex" if self.regex is not None else None
        if other is not None and (self._has_format or self.offered_tools):
            name = "response_format" if self._has_format else "tools"
            raise wrong(f"'{name}' and '{other}' both say what the answer is: send one of them.", param=other)
        forced = self.tool_choice is not None and self.tool_choice.mode == "required"
        if self.ignore_eos and (self._has_format or forced or any(tool.function.strict for tool in self.offered_tools)):
            name = "response_format" if self._has_format else "tools"
            raise wrong(f"'ignore_eos' is not allowed where '{name}' says when the answer ends.", param="ignore_eos")
        return self

    @property
    def _has_format(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        return [] if self.tool_choice is not None and self.tool_choice.mode == "none" else self.tools or []

    @property
    def answer_tokens(self) -> int | None:
        """The longest answer wanted, in tokens."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to report beside each chosen token; None when no logprobs are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationParameters):
    """POST /v1/completions."""

    prompt: Annotated[tuple[str | tuple[int, ...], ...], Prompts]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Annotated[str | None, only("suffix", "")] = None

    @model_validator(mode="after")
    def _parameters_agree(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            message = "The parameter 'best_of' is not supported by this server, unless it equals 'n'."
            raise unsupported(message, param="best_of")
        if self.echo and self.logprobs is not None:
            message = "The parameter 'logprobs' is not supported by this server together with 'echo'."
            raise unsupported(message, param="logprobs")
        if self.max_tokens == 0 and not self.echo:
            raise wrong("'max_tokens' must be at least 1, unless 'echo' is true.", param="max_tokens")
        return self

    @property
    def answer_tokens(self) -> int | None:
        """The longest answer wanted, in tokens. OpenAI's default here is 16; clients count on it."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to report beside each chosen token; None when no logprobs are wanted."""
        return self.logprobs
