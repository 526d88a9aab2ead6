"""Tools and reasoning over HTTP: what the prompt says, what an answer is made of, streamed and whole."""

import dataclasses
import json

import pytest

from shoal_router.text.fake import CHATML_THINKS, CHATML_TOOLS, fake_text_model

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TIME = {"type": "function", "function": {"name": "time", "description": "What time it is"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 😀"}}\n</tool_call>'
SECOND = '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


@pytest.fixture
def tools(bench):
    bench.text = fake_text_model(template=CHATML_TOOLS)
    return bench


@pytest.fixture
def thinker(bench):
    bench.text = fake_text_model(template=CHATML_THINKS)
    return bench


def assembled(chunks, index=0):
    """What a client puts together from a stream: content, reasoning, calls, finish reason."""
    content, reasoning, calls, finish = "", "", [], None
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append({"id": call["id"], "type": call["type"], "function": {**call["function"]}})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return content, reasoning, calls, finish


def prompt_of(bench) -> str:
    return bench.text.tokenizer.decode(list(bench.generator.requests[-1].prompt), skip_special_tokens=False)


async def test_a_call_whole_and_streamed(tools, events) -> None:
    tools.say(f"I look.\n{CALL}{SECOND}")
    choice = (await tools.chat(tools=[WEATHER, TIME])).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "I look."
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"name": "weather", "arguments": '{"city": "Köln 😀"}'}, {"name": "time", "arguments": "{}"}]
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in message["tool_calls"])
    stream = events(await tools.chat(tools=[WEATHER, TIME], stream=True))
    assert stream.pop() == "[DONE]"
    content, _, calls, finish = assembled(stream)
    assert (content, [call["function"] for call in calls], finish) == ("I look.", functions, "tool_calls")
    arguments = [
        call["function"]["arguments"]
        for chunk in stream
        for call in chunk["choices"][0]["delta"].get("tool_calls", ())
        if call["index"] == 0
    ]
    assert len(arguments) > 10, "arguments come as they are written"


async def test_the_template_gets_the_tools_and_the_history_of_calls(tools) -> None:
    history = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    response = await tools.chat(messages=history, tools=[WEATHER, TIME], tool_choice="auto")
    assert response.status_code == 200
    prompt = prompt_of(tools)
    assert '"name": "weather", "description": ""' in prompt
    assert '"parameters": {"type": "object", "properties": {}}' in prompt
    assert "12:00" in prompt


async def test_tool_choice_none_offers_nothing_and_reads_nothing(tools) -> None:
    tools.say(CALL)
    choice = (await tools.chat(tools=[WEATHER], tool_choice="none")).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == CALL
    assert "tool_calls" not in choice["message"]
    assert "Tools:" not in prompt_of(tools)


async def test_without_parallel_calls_the_answer_ends_behind_the_first(tools) -> None:
    tools.say(CALL + SECOND)
    body = (await tools.chat(tools=[WEATHER, TIME], parallel_tool_calls=False)).json()
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["choices"][0]["message"]["content"] is None
    written = CALL[: CALL.index("\n</tool_call>")]
    assert body["usage"]["completion_tokens"] == len(tools.ids(written))


async def test_a_call_that_the_length_limit_cuts_ends_with_length(tools) -> None:
    tools.say(CALL)
    choice = (await tools.chat(tools=[WEATHER], max_tokens=50)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"c')


async def test_logprobs_are_of_every_token_of_a_call(tools, events) -> None:
    tools.say(CALL)
    asked = {"tools": [WEATHER], "logprobs": True, "top_logprobs": 1}
    whole = (await tools.chat(**asked)).json()["choices"][0]["logprobs"]["content"]
    stream = events(await tools.chat(**asked, stream=True))[:-1]
    streamed = [entry for chunk in stream for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert whole == streamed
    assert len(whole) == len(tools.ids(CALL))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "no space"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "sometimes", "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": "required", "tools": [WEATHER], "ignore_eos": True}, "ignore_eos"),
        ({"tools": [WEATHER], "regex": "a"}, "regex"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"stop_token_ids": [99999]}, "stop_token_ids"),
    ],
)
async def test_what_does_not_fit_is_named(tools, body, param) -> None:
    response = await tools.chat(**body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("body", "called", "begins"),
    [
        ({"tools": [WEATHER, TIME], "tool_choice": "required"}, {"weather", "time"}, "start: calls"),
        ({"tools": [WEATHER, TIME], "tool_choice": NAMED}, {"weather"}, "start: calls"),
        ({"tools": [STRICT, TIME]}, {"weather", "time"}, "start: TEXT | head"),
        (
            {"tools": [WEATHER], "response_format": {"type": "json_object"}},
            {"weather"},
            "start: calls | content",
        ),
    ],
)
async def test_calls_that_must_come_or_must_be_right_are_a_grammar(tools, body, called, begins) -> None:
    tools.say(CALL)
    assert (await tools.chat(**body)).status_code == 200
    (asked,) = tools.grammars.asked
    assert asked.param == "tools"
    assert asked.text.startswith(begins)
    assert {name for name in ("weather", "time") if f'\\"name\\": \\"{name}\\"' in asked.text} == called
    assert tools.generator.requests[0].params.grammar


async def test_calls_that_may_come_are_free(tools) -> None:
    tools.say(CALL)
    await tools.chat(tools=[WEATHER], tool_choice="auto")
    await tools.chat(tools=[STRICT], tool_choice="none")
    assert not tools.grammars.asked


async def test_reasoning_is_apart_from_the_answer(thinker, events) -> None:
    thinker.say("<think>\nHm 😀\n</think>\n\nYes.")
    body = (await thinker.chat()).json()
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm 😀", "Yes.")
    reasoning_tokens = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert reasoning_tokens == len(thinker.ids("\nHm 😀\n</think>"))
    stream = events(await thinker.chat(stream=True))[:-1]
    assert assembled(stream) == ("Yes.", "Hm 😀", [], "stop")


async def test_chat_template_kwargs_reach_the_template(thinker) -> None:
    thinker.say("Yes.")
    message = (await thinker.chat(chat_template_kwargs={"enable_thinking": False})).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert prompt_of(thinker).endswith("<think>\n\n</think>\n\n")


async def test_stop_token_ids_end_the_answer_unseen(bench) -> None:
    bench.say("abcde")
    (stop,) = bench.ids("c")
    body = (await bench.chat(stop_token_ids=[stop])).json()
    assert body["choices"][0]["message"]["content"] == "ab"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3
    body = (await bench.complete(stop_token_ids=[stop], ignore_eos=True)).json()
    assert body["choices"][0]["text"] == "ab"


async def test_a_special_token_of_the_calls_is_read(bench) -> None:
    """Mistral's tokenizers call [TOOL_CALLS] special, so that it is no text elsewhere."""
    text = fake_text_model(template="{% if tools %}[TOOL_CALLS]{% endif %}{{ messages[0].content }}")
    text.tokenizer.add_special_tokens(["[TOOL_CALLS]"])
    bench.text = dataclasses.replace(text, token_bytes=type(text.token_bytes)(text.tokenizer))
    bench.say('[TOOL_CALLS][{"name": "time", "arguments": {}}]')
    message = (await bench.chat(tools=[TIME])).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "time", "arguments": "{}"}
    assert len(message["tool_calls"][0]["id"]) == 9
    assert json.dumps(message).count("TOOL_CALLS") == 0
    assert (await bench.chat()).json()["choices"][0]["message"]["content"].startswith("[{")


async def test_every_sequence_has_the_id_of_its_request(bench) -> None:
    headers = {"x-request-id": "mine-1"}
    response = await bench.client.post(
        "/v1/completions", json={"model": "fake", "prompt": ["a", "b"], "max_tokens": 2}, headers=headers
    )
    assert response.headers["x-request-id"] == "mine-1"
    assert [request.request_id for request in bench.generator.requests] == ["mine-1", "mine-1"]
