"""openai-python: everything that the API offers, over two stages and over a recital."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "fake", "messages": MESSAGES, "seed": 7, "max_tokens": 60}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
FLAT_TOOL = {"type": "function", **TOOL["function"], "strict": False}


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
