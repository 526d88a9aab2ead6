"""/v1/chat/completions: answers whole and streamed, in the shapes of openai-python's own types."""

from shoal.wire.messages import SamplingParams
from shoal_router.request_check import check_request
from shoal_router.text.fake import EOS_ID
from shoaltest.openai_types import as_openai


def content(chunks, index=0):
    """The text of one choice of a stream."""
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        if isinstance(chunk, dict)
        for choice in chunk["choices"]
        if choice["index"] == index
    )


async def test_a_whole_answer_has_openais_shape(bench) -> None:
    response = await bench.chat()
    assert response.status_code == 200
    answer = as_openai("chat.ChatCompletion", response.json(), strict=True, extra="forbid")
    assert answer.choices[0].message.content == "Hello 😀 ไทย 世界"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == "fp_ffffffffff_1"


async def test_every_chunk_has_openais_shape(bench, events) -> None:
    response = await bench.chat(stream=True, logprobs=True, top_logprobs=2, stream_options={"include_usage": True})
    chunks = events(response)[:-1]
    parsed = [as_openai("chat.ChatCompletionChunk", chunk, strict=True, extra="forbid") for chunk in chunks]
    assert {chunk.id for chunk in parsed} == {parsed[0].id}
    assert parsed[0].choices[0].delta.role == "assistant"
    assert parsed[0].choices[0].delta.content == ""
    assert [chunk.choices[0].finish_reason for chunk in parsed[:-1]] == [None] * (len(parsed) - 2) + ["stop"]
    assert all(chunk.object == "chat.completion.chunk" for chunk in parsed)


async def test_case_66_a_stream_ends_with_done_and_shows_no_special_token(bench, events) -> None:
    ids = (*bench.ids("<|im_start|>so<|endoftext|>"), EOS_ID)
    bench.generator.script = lambda _: ids
    stream = events(await bench.chat(stream=True))
    assert stream[-1] == "[DONE]"
    assert stream.count("[DONE]") == 1
    assert content(stream) == "so"


async def test_case_67_the_stream_joined_equals_the_whole_answer(bench, events) -> None:
    text = "emoji 😀👩‍👩‍👧 ไทยไทย 你好，世界 \u2028 \x85 é"
    bench.say(text)
    for per_delta in (1, 3):
        bench.generator.per_delta = per_delta
        stream = events(await bench.chat(stream=True))
        whole = (await bench.chat()).json()["choices"][0]["message"]["content"]
        assert content(stream) == whole == text
        assert not any("\ufffd" in content([chunk]) for chunk in stream)


async def test_case_68_a_stop_string_over_token_borders_is_not_shown(bench, events) -> None:
    bench.say("one two</stop> three")
    for per_delta in (1, 2, 5, 100):
        bench.generator.per_delta = per_delta
        stream = events(await bench.chat(stream=True, stop=["</stop>", "never"]))
        assert content(stream) == "one two"
        assert stream[-2]["choices"][0]["finish_reason"] == "stop"
    bench.generator.per_delta = 1
    whole = (await bench.chat(stop="</stop>")).json()
    assert whole["choices"][0]["message"]["content"] == "one two"
    assert whole["usage"]["completion_tokens"] == len("one two</stop>")
    # All but the one whose ids came at once: there nothing was left to cancel.
    assert len(bench.generator.cancelled) == 4, "a stop string must end the generation on the stages"


async def test_case_68_a_partial_stop_string_is_shown_at_the_end(bench, events) -> None:
    bench.say("well </sto")
    assert content(events(await bench.chat(stream=True, stop=["</stop>"]))) == "well </sto"


async def test_case_73_usage_comes_last_with_no_choices_and_is_null_before(bench, events) -> None:
    *chunks, last, done = events(await bench.chat(stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(bench.ids("Hello 😀 ไทย 世界")) + 1
    assert len(chunks) > 3
    assert all("usage" in chunk and chunk["usage"] is None for chunk in chunks)


async def test_without_include_usage_no_chunk_speaks_of_it(bench, events) -> None:
    stream = events(await bench.chat(stream=True))
    assert not any("usage" in chunk for chunk in stream[:-1])


async def test_case_74_case_89_usage_is_exact(bench) -> None:
    bench.generator.cached_tokens = 7
    messages = [{"role": "system", "content": "Be 😀"}, {"role": "user", "content": "hi"}]
    usage = (await bench.chat(messages=messages)).json()["usage"]
    prompt = bench.ids("<|im_start|>system\nBe 😀<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    drawn = len(bench.ids("Hello 😀 ไทย 世界")) + 1
    assert bench.generator.requests[0].prompt == prompt
    assert usage == {
        "prompt_tokens": len(prompt),
        "completion_tokens": drawn,
        "total_tokens": len(prompt) + drawn,
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_n_choices_stream_side_by_side(bench, events) -> None:
    answers = {0: "first", 1: "second one", 2: ""}
    asked = bench.generator.requests
    bench.generator.script = lambda _: (*bench.ids(answers[(len(asked) - 1) % 3]), EOS_ID)
    stream = events(await bench.chat(stream=True, n=3, seed=5, stream_options={"include_usage": True}))
    assert [content(stream, index) for index in range(3)] == ["first", "second one", ""]
    roles = [c["index"] for e in stream[:-1] for c in e["choices"] if c["delta"].get("role")]
    ends = [c["index"] for e in stream[:-1] for c in e["choices"] if c["finish_reason"]]
    assert (sorted(roles), sorted(ends)) == ([0, 1, 2], [0, 1, 2])
    prompt = len(bench.generator.requests[0].prompt)
    assert stream[-2]["usage"]["prompt_tokens"] == prompt, "a prompt counts once"
    assert stream[-2]["usage"]["completion_tokens"] == sum(len(a) for a in answers.values()) + 3
    seeds = [request.params.seed for request in bench.generator.requests]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    whole = (await bench.chat(n=3)).json()
    assert [c["message"]["content"] for c in whole["choices"]] == ["first", "second one", ""]


async def test_cached_tokens_are_those_that_every_choice_found(bench) -> None:
    bench.generator.cached_tokens = 9
    usage = (await bench.chat(n=2)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 9}


async def test_logprobs_stream_beside_their_text_and_equal_the_whole(bench, events) -> None:
    bench.say("a😀")
    body = {"logprobs": True, "top_logprobs": 2}
    whole = (await bench.chat(**body)).json()["choices"][0]["logprobs"]["content"]
    stream = events(await bench.chat(stream=True, **body))
    streamed = [
        entry
        for chunk in stream[:-1]
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole
    assert [entry["token"] for entry in whole] == ["a", "�", "�", "�", "�"]
    assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == "a😀"
    assert [len(entry["top_logprobs"]) for entry in whole] == [2] * 5
    assert bench.generator.requests[0].params.logprobs == 2


async def test_max_tokens_under_either_name_limits_the_answer(bench) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = (await bench.chat(**{name: 3})).json()
        assert answer["choices"][0]["message"]["content"] == "Hel"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 3
    await bench.chat()
    assert bench.generator.requests[-1].max_tokens is None, "without a limit: up to the context's end"


async def test_sampling_parameters_reach_the_stages(bench) -> None:
    await bench.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"10": -100, "3": 5.5},
        seed=-1,
        logprobs=True,
    )
    assert bench.generator.requests[0].params == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        logit_bias=((3, 5.5), (10, -100.0)),
        seed=2**64 - 1,
        logprobs=0,
    )


async def test_a_top_p_of_nought_is_the_likeliest_token_and_no_stage_refuses_it(bench) -> None:
    assert (await bench.chat(top_p=0)).status_code == 200
    request = bench.generator.requests[0]
    check_request(request, vocab_size=1000)
    assert 0 < request.params.top_p < 1e-6


async def test_without_a_seed_every_request_draws_its_own(bench) -> None:
    await bench.chat()
    await bench.chat()
    first, second = (request.params.seed for request in bench.generator.requests)
    assert first != second


async def test_ignore_eos_goes_on_past_the_stop_id(bench) -> None:
    ids = (*bench.ids("a"), EOS_ID, *bench.ids("b"))
    bench.generator.script = lambda _: ids
    answer = (await bench.chat(ignore_eos=True, max_tokens=3)).json()
    assert answer["choices"][0]["message"]["content"] == "ab"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_labels_change_nothing_and_are_accepted(bench) -> None:
    response = await bench.chat(user="u1", metadata={"a": "b"}, prompt_cache_key="k", safety_identifier="s")
    assert response.status_code == 200
