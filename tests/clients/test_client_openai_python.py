"""openai-python: everything that the API offers, over two stages and over a recital."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Literal

import openai
import pytest
from pydantic import BaseModel, Field

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "fake", "messages": MESSAGES, "seed": 7, "max_tokens": 60}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
FLAT_TOOL = {"type": "function", **TOOL["function"], "strict": False}
LONG = {"model": "fake", "messages": MESSAGES, "seed": 7, "max_tokens": 400}


class Animal(BaseModel):
    """What random tokens must become. Its strings are bounded: nothing else would end them."""

    name: Annotated[str, Field(max_length=6)]
    kind: Literal["cat", "bird"]
    legs: Annotated[int, Field(ge=0, le=4)]


class Feed(BaseModel):
    """Feed it."""

    animal: Annotated[str, Field(max_length=6)]
    grams: Annotated[int, Field(ge=1, le=99)]


@pytest.fixture
def client(live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def reciter(recital) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{recital}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_case_86_chat_whole_and_streamed_over_two_stages(client) -> None:
    whole = client.chat.completions.create(**CHAT, n=2, logprobs=True, top_logprobs=2)
    said, entries, usage = ["", ""], [0, 0], None
    stream = client.chat.completions.create(
        **CHAT, n=2, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
            entries[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
    assert said == [choice.message.content for choice in whole.choices]
    assert entries == [len(choice.logprobs.content) for choice in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert said[0] != said[1], "each choice draws its own numbers"


def test_completions_in_every_form_of_the_prompt(client) -> None:
    asked = {"model": "fake", "seed": 3, "max_tokens": 12, "temperature": 0.7}
    texts = client.completions.create(**asked, prompt=["hi", "ho"], n=2)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    ids = client.completions.create(**asked, prompt=[107, 108], echo=True, logit_bias={"5": -100})
    assert ids.usage.prompt_tokens == 2
    parts = client.completions.create(**asked, prompt="hi", stream=True)
    whole = client.completions.create(**asked, prompt="hi")
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text


def test_the_request_id_and_the_error_classes(client) -> None:
    raw = client.chat.completions.with_raw_response.create(**CHAT, extra_headers={"x-request-id": "mine"})
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse()._request_id == "mine"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**CHAT | {"model": "gpt-9"})
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**CHAT, modalities=["audio"])
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "modalities")
    with pytest.raises(openai.BadRequestError, match="text-embeddings-inference"):
        client.embeddings.create(model="fake", input="x")


def test_tools_whole_and_streamed_and_answered(reciter, said) -> None:
    whole = reciter.chat.completions.create(model="fake", messages=MESSAGES, tools=[TOOL])
    (call,) = whole.choices[0].message.tool_calls
    assert whole.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments) == {"city": "Köln 😀"}
    with reciter.chat.completions.stream(model="fake", messages=MESSAGES, tools=[TOOL]) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert streamed.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    history = [*MESSAGES, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    answer = reciter.chat.completions.create(model="fake", messages=history, tools=[TOOL])
    assert answer.choices[0].message.content == said


def test_responses_whole_streamed_and_gone_on_from(reciter, said) -> None:
    first = reciter.responses.create(model="fake", input="hi", tools=[FLAT_TOOL])
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Köln 😀"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = reciter.responses.create(model="fake", input=[output], previous_response_id=first.id, tools=[FLAT_TOOL])
    assert second.output_text == said
    with reciter.responses.stream(model="fake", input="hi") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == said
    assert reciter.responses.retrieve(second.id).output_text == said
    reciter.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        reciter.responses.retrieve(second.id)


def test_responses_over_two_stages(client) -> None:
    whole = client.responses.create(model="fake", input="hi", max_output_tokens=30)
    assert whole.usage.output_tokens <= 30
    kinds = [
        event.type for event in client.responses.create(model="fake", input="hi", max_output_tokens=30, stream=True)
    ]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_case_81_a_response_format_is_parsed_by_pydantic(client) -> None:
    whole = client.chat.completions.parse(**LONG, response_format=Animal)
    assert isinstance(whole.choices[0].message.parsed, Animal)
    with client.chat.completions.stream(**LONG, response_format=Animal) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == whole.choices[0].message.parsed
    answer = client.responses.parse(model="fake", input="hi", max_output_tokens=400, text_format=Animal)
    assert isinstance(answer.output_parsed, Animal)
    schema = {"name": "x", "schema": {"type": "array", "uniqueItems": True}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as refused:
        client.chat.completions.create(**LONG, response_format={"type": "json_schema", "json_schema": schema})
    assert refused.value.param == "response_format.json_schema.schema"


def test_calls_are_forced_and_their_arguments_parsed_by_pydantic(client) -> None:
    tools = [openai.pydantic_function_tool(Animal), openai.pydantic_function_tool(Feed)]
    named = {"type": "function", "function": {"name": "Feed"}}
    for choice, names in (("required", {"Animal", "Feed"}), (named, {"Feed"})):
        forced = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        whole = client.chat.completions.parse(**LONG, **forced)
        assert whole.choices[0].finish_reason == "tool_calls"
        (call,) = whole.choices[0].message.tool_calls
        assert call.function.name in names
        assert isinstance(call.function.parsed_arguments, Animal | Feed)
        with client.chat.completions.stream(**LONG, **forced) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
        assert streamed.function.parsed_arguments == call.function.parsed_arguments
    flat = {"type": "function", "name": "Feed", "parameters": Feed.model_json_schema(), "strict": False}
    answer = client.responses.create(
        model="fake", input="hi", tools=[flat], tool_choice={"type": "function", "name": "Feed"}
    )
    (call,) = answer.output
    assert (call.type, call.name) == ("function_call", "Feed")
    Feed.model_validate_json(call.arguments)


def test_expressions_and_grammars_are_extensions(client) -> None:
    said = client.chat.completions.create(**LONG, extra_body={"regex": "[a-c]{3}-[0-9]{2}"}).choices[0].message.content
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", said)
    said = client.completions.create(
        model="fake", prompt="x", max_tokens=9, extra_body={"grammar": 'root ::= "yes" | "no"'}
    )
    assert said.choices[0].text in ("yes", "no")
