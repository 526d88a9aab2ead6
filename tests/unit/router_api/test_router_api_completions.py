"""/v1/completions: prompts in every form, echo, the old logprobs."""

import pytest

from shoaltest.openai_types import as_openai


async def test_whole_and_streamed_have_openais_shape_and_agree(bench, events) -> None:
    bench.say("Hello 😀 ไทย")
    whole = await bench.complete(max_tokens=100, logprobs=2)
    answer = as_openai("Completion", whole.json(), strict=True, extra="forbid")
    assert answer.choices[0].text == "Hello 😀 ไทย"
    assert answer.choices[0].finish_reason == "stop"
    body = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 2}
    *chunks, usage, done = events(await bench.complete(max_tokens=100, **body))
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == whole.json()["usage"]
    for chunk in chunks[:-1]:  # openai-python's type wants a finish_reason in every chunk; OpenAI sends null
        assert chunk["choices"][0]["finish_reason"] is None
        as_openai(
            "Completion",
            {**chunk, "choices": [{**chunk["choices"][0], "finish_reason": "stop"}]},
            strict=True,
            extra="forbid",
        )
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer.choices[0].text
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for part in parts for item in part[name]] == whole.json()["choices"][0]["logprobs"][name]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ["hi"]),
        (["hi", "yo 😀"], ["hi", "yo 😀"]),
        ([107, 108], ["hi"]),
        ([[107], [108, 108]], ["h", "ii"]),
    ],
)
async def test_every_form_of_prompt(bench, prompt, expected) -> None:
    response = await bench.complete(prompt=prompt, n=2)
    assert [request.prompt for request in bench.generator.requests] == [
        bench.ids(text) for text in expected for _ in range(2)
    ]
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(2 * len(expected)))
    assert response.json()["usage"]["prompt_tokens"] == sum(len(bench.ids(text)) for text in expected)


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", 1], [1, "a"], [1.5], [True], None, {}, [259], [-1], ["ok", ""]])
async def test_a_prompt_that_is_none_is_refused_by_name(bench, prompt) -> None:
    response = await bench.complete(prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert bench.generator.requests == []


async def test_echo_puts_the_prompt_before_the_answer(bench, events) -> None:
    bench.say(" there")
    assert (await bench.complete(echo=True)).json()["choices"][0]["text"] == "hi there"
    assert (await bench.complete(echo=True, prompt=[107])).json()["choices"][0]["text"] == "h there"
    stream = events(await bench.complete(echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in stream[:-1]) == "hi there"


async def test_echo_alone_generates_nothing(bench, events) -> None:
    answer = (await bench.complete(echo=True, max_tokens=0)).json()
    assert answer["choices"][0]["text"] == "hi"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 0,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    stream = events(await bench.complete(echo=True, max_tokens=0, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in stream[:-1]) == "hi"
    assert bench.generator.requests == []


async def test_the_default_length_is_openais(bench) -> None:
    await bench.complete()
    assert bench.generator.requests[0].max_tokens == 16


async def test_tokens_that_are_no_text_are_told_as_bytes(bench) -> None:
    bench.say("é")
    logprobs = (await bench.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["text_offset"] == [0, 0]
    assert logprobs["top_logprobs"] == [None, None]


async def test_best_of_equal_to_n_is_no_wish(bench) -> None:
    assert (await bench.complete(best_of=1)).status_code == 200
    assert (await bench.complete(best_of=2, n=2)).status_code == 200
