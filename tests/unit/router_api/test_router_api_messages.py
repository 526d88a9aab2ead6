"""What the chat template gets: roles, missing content, parts, tool calls of the history."""

import dataclasses
import json

import pytest

from shoal_router.text.fake import fake_text_model

IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
DUMP = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é<"}'}}


async def rendered(bench, *messages):
    """The messages as the template saw them."""
    dumping = dataclasses.replace(bench, text=fake_text_model(template=DUMP))
    response = await dumping.chat(messages=list(messages))
    assert response.status_code == 200, response.text
    prompt = bench.text.decode(bench.generator.requests[-1].prompt)
    return [json.loads(line) for line in prompt.splitlines()]


@pytest.mark.parametrize("extra", [{"content": None}, {"content": ""}, {}, {"content": []}])
async def test_case_76_an_assistant_with_tool_calls_needs_no_content(bench, extra) -> None:
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [CALL], **extra}]
    tool = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    seen = await rendered(bench, *history, tool)
    assert not seen[1]["content"]
    assert seen[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": "é<"}}}
    ]
    assert seen[2] == tool


@pytest.mark.parametrize("extra", [{"content": None}, {"content": ""}, {}, {"tool_calls": []}, {"tool_calls": None}])
async def test_case_78_an_empty_assistant_message_is_accepted(bench, extra) -> None:
    seen = await rendered(bench, {"role": "user", "content": ""}, {"role": "assistant", **extra})
    assert seen == [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]


async def test_an_answers_dump_may_come_back_as_history(bench) -> None:
    dump = {
        "content": "Yes",
        "refusal": None,
        "role": "assistant",
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert await rendered(bench, dump) == [{"role": "assistant", "content": "Yes"}]


async def test_text_parts_become_one_string(bench) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    seen = await rendered(bench, {"role": "developer", "content": parts, "name": "ann"})
    assert seen == [{"role": "system", "content": "a\nb", "name": "ann"}]


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        (
            {"role": "user", "content": [IMAGE]},
            "content",
            "unsupported_parameter",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content", "unsupported_parameter"),
        ({"role": "user", "content": None}, "content", "invalid_value"),
        ({"role": "user"}, "content", "missing_required_parameter"),
        ({"role": "user", "content": 5}, "content", "invalid_value"),
        ({"role": "user", "content": ["a"]}, "content", "invalid_value"),
        ({"role": "user", "content": [{"type": "text"}]}, "content", "invalid_value"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "mark": 1}]}, "content", "unsupported_parameter"),
        ({"role": "user", "content": "\ud800"}, "content", "invalid_value"),
        ({"role": "tool", "content": "1"}, "tool_call_id", "missing_required_parameter"),
        ({"role": "function", "name": "f", "content": "1"}, "role", "invalid_value"),
        ({"content": "1"}, "role", "missing_required_parameter"),
        ({"role": "user", "content": "1", "colour": 1}, "colour", "unknown_parameter"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
        ({"role": "assistant", "audio": {"id": "a"}}, "audio", "unsupported_parameter"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(bench, message, param, code) -> None:
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "q"}, message]})
    response = await bench.client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (f"messages[1].{param}", code)
    assert error["type"] == "invalid_request_error"
    assert bench.generator.requests == []


@pytest.mark.parametrize("arguments", ["[1]", "{", "nope", '{"a": NaN}', '{"a": "\\ud800"}'])
async def test_tool_call_arguments_must_be_an_object(bench, arguments) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    response = await bench.chat(messages=[{"role": "assistant", "tool_calls": [call]}])
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == "messages[0].tool_calls[0].function.arguments"
    assert "JSON object" in error["message"]


async def test_a_templates_refusal_is_a_400_in_its_words(bench) -> None:
    source = "{{ raise_exception('Conversation roles must alternate') }}"
    refusing = dataclasses.replace(bench, text=fake_text_model(template=source))
    response = await refusing.chat()
    assert response.status_code == 400
    assert "Conversation roles must alternate" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "chat_template_refused"


async def test_a_model_without_template_says_what_to_use(bench) -> None:
    bare = dataclasses.replace(bench, text=fake_text_model(template=None))
    response = await bare.chat()
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]
