"""The Responses API: items in and out, events, going on from a kept response; openai-python's own types judge."""

import json

import pytest

from shoal_router.api.responses.kept import KeptResponses
from shoal_router.text.fake import CHATML_THINKS, CHATML_TOOLS, fake_text_model
from shoaltest.openai_types import as_openai

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


async def respond(bench, **body):
    return await bench.client.post("/v1/responses", json={"model": "fake", "input": "hi"} | body)


def events_of(response):
    """The events of a stream, after checking names, numbers and types."""
    events = []
    for number, block in enumerate(response.text.removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        as_openai("responses.ResponseStreamEvent", event)
        events.append(event)
    return events


def prompt_of(bench) -> str:
    return bench.text.tokenizer.decode(list(bench.generator.requests[-1].prompt), skip_special_tokens=False)


async def test_a_text_whole_and_streamed(bench) -> None:
    whole = (await respond(bench, instructions="Be brief.", max_output_tokens=50)).json()
    parsed = as_openai("responses.Response", whole)
    assert (parsed.status, parsed.output_text) == ("completed", "Hello 😀 ไทย 世界")
    assert parsed.usage.total_tokens == parsed.usage.input_tokens + parsed.usage.output_tokens
    assert prompt_of(bench).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi")
    events = events_of(await respond(bench, stream=True))
    kinds = [event["type"] for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[2]["item"]["content"] == [], "an event tells how it was then"
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert said == parsed.output_text == events[-1]["response"]["output"][0]["content"][0]["text"]
    assert events[-1]["response"]["usage"] == whole["usage"] | {
        name: events[-1]["response"]["usage"][name] for name in ("input_tokens", "total_tokens")
    }


async def test_the_length_limit_makes_it_incomplete(bench) -> None:
    body = (await respond(bench, max_output_tokens=3)).json()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events_of(await respond(bench, max_output_tokens=3, stream=True))[-1]["type"] == "response.incomplete"


async def test_calls_and_reasoning_are_items_of_their_own(bench) -> None:
    bench.text = fake_text_model(template=CHATML_TOOLS + "{# </think> #}")
    bench.say(f"<think>Hm.</think>\nI look.{CALL}")
    body = (await respond(bench, tools=[WEATHER])).json()
    as_openai("responses.Response", body)
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    assert body["output"][2]["arguments"] == '{"city": "Köln"}'
    events = events_of(await respond(bench, tools=[WEATHER], stream=True))
    assert [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"] == [
        "reasoning",
        "message",
        "function_call",
    ]
    done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
    assert done["arguments"] == '{"city": "Köln"}'


async def test_a_response_goes_on_from_a_kept_one(bench) -> None:
    bench.text = fake_text_model(template=CHATML_TOOLS)
    bench.say(CALL)
    first = (await respond(bench, input="weather?", tools=[WEATHER], instructions="Old.")).json()
    answer = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}
    bench.say("It rains.")
    second = (await respond(bench, input=[answer], previous_response_id=first["id"])).json()
    prompt = prompt_of(bench)
    assert "weather?" in prompt
    assert '{"name": "weather", "arguments": {"city": "Köln"}}' in prompt
    assert "rain<|im_end|>" in prompt
    assert "Old." not in prompt, "instructions hold for one response"
    assert second["previous_response_id"] == first["id"]
    assert (await bench.client.get(f"/v1/responses/{first['id']}")).json() == first
    assert (await bench.client.delete(f"/v1/responses/{first['id']}")).json()["deleted"] is True
    gone = await respond(bench, previous_response_id=first["id"])
    assert gone.status_code == 404
    assert gone.json()["error"]["param"] == "previous_response_id"


async def test_what_is_not_to_be_stored_is_not(bench) -> None:
    body = (await respond(bench, store=False)).json()
    assert (await bench.client.get(f"/v1/responses/{body['id']}")).status_code == 404


def test_kept_responses_are_bounded_and_belong_to_their_key() -> None:
    kept = KeptResponses(most=2, characters=10_000)
    for number in range(3):
        kept.keep("anna", {"id": f"r{number}"}, [])
    kept.keep("anna", {"id": "large", "text": "x" * 20_000}, [])
    for gone in ("r0", "large"):
        with pytest.raises(Exception, match="not found"):
            kept.get(gone, "anna", param=None)
    kept.keep("anna", {"id": "r3"}, [])
    with pytest.raises(Exception, match="not found"):
        kept.get("r3", "bert", param=None)
    assert kept.get("r3", "anna", param=None).response == {"id": "r3"}


async def test_a_history_as_items(bench) -> None:
    bench.text = fake_text_model(template=CHATML_THINKS)
    items = [
        {"role": "developer", "content": "Rule."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "two", "annotations": []}],
        },
        {"role": "user", "content": "three"},
    ]
    assert (await respond(bench, input=items)).status_code == 200
    assert [line for line in ("Rule.", "one", "two", "three") if line not in prompt_of(bench)] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "x" * 5000}, "input"),  # more than the context
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"unknown": 1}, "unknown"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"model": "other"}, "model"),
    ],
)
async def test_what_is_wrong_is_named_as_it_was_sent(bench, body, param) -> None:
    bench.text = fake_text_model(template=CHATML_TOOLS)
    response = await respond(bench, **body)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] == param


async def test_case_80_a_schema_that_cannot_be_used_is_named_as_it_was_sent(bench) -> None:
    schema = {"type": "array", "uniqueItems": True}
    bench.grammars.refused[json.dumps(schema)] = "uniqueItems"
    response = await respond(bench, text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "text.format.schema"
    assert "Invalid schema for 'text.format.schema': uniqueItems" in response.json()["error"]["message"]


async def test_logprobs_of_the_text(bench) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body = (await respond(bench, **asked)).json()
    (part,) = body["output"][0]["content"]
    assert len(part["logprobs"]) == len(bench.ids("Hello 😀 ไทย 世界"))
    as_openai("responses.Response", body)
    events = events_of(await respond(bench, stream=True, **asked))
    streamed = [e for event in events if event["type"] == "response.output_text.delta" for e in event["logprobs"]]
    assert streamed == part["logprobs"]


async def test_a_failure_in_mid_stream_is_an_event(bench) -> None:
    bench.generator.fails_after = (2, RuntimeError("broken"))
    last = events_of(await respond(bench, stream=True))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"


async def test_tokenize_and_detokenize(bench) -> None:
    ids = list(bench.ids("Hi 😀"))
    body = (await bench.client.post("/tokenize", json={"prompt": "Hi 😀"})).json()
    assert body == {"count": len(ids), "max_model_len": 4096, "tokens": ids}
    chat = (await bench.client.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]})).json()
    back = (await bench.client.post("/detokenize", json={"model": "fake", "tokens": chat["tokens"]})).json()
    assert back == {"prompt": "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"}
    for path, wrong in (
        ("/tokenize", {}),
        ("/detokenize", {"tokens": [99999]}),
        ("/tokenize", {"model": "no", "prompt": ""}),
    ):
        response = await bench.client.post(path, json=wrong)
        assert response.status_code in (400, 404)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_embeddings_say_what_to_use(bench) -> None:
    response = await bench.client.post("/v1/embeddings", json={"model": "fake", "input": "x"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_endpoint"
    assert "text-embeddings-inference" in response.json()["error"]["message"]
