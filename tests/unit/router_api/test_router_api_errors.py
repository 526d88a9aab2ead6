"""Refusals and failures: OpenAI's body with type, param and code; nothing is ignored in silence."""

import asyncio
import dataclasses

import pytest

from shoal_router.generation import ContextLengthExceeded, GenerationFailed, PipelineUnavailable, QueueFull


def error_of(response, status):
    """The error object, after checking that the answer is one."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert response.headers["x-request-id"]
    return body["error"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),  # the template of this model knows none
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("store", True),
        ("service_tier", "flex"),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x", "format": "wav"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
    ],
)
async def test_case_80_what_is_not_served_is_refused_by_name(bench, name, value) -> None:
    error = error_of(await bench.chat(**{name: value}), 400)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", name, "unsupported_parameter")
    assert f"'{name}'" in error["message"]
    assert bench.generator.requests == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "none"),
        ("functions", []),
        ("store", False),
        ("service_tier", "auto"),
        ("modalities", ["text"]),
        ("verbosity", "medium"),
    ],
)
async def test_values_that_change_nothing_are_accepted_and_so_is_null(bench, name, value) -> None:
    assert (await bench.chat(**{name: value})).status_code == 200
    assert (await bench.chat(**{name: None})).status_code == 200


@pytest.mark.parametrize(
    ("name", "value"), [("suffix", "end"), ("best_of", 2), ("tools", [{}]), ("max_completion_tokens", 5)]
)
async def test_completions_refuse_by_name_too(bench, name, value) -> None:
    error = error_of(await bench.complete(**{name: value}), 400)
    assert error["param"] == name
    assert error["code"] in ("unsupported_parameter", "unknown_parameter")


async def test_echo_with_logprobs_is_refused(bench) -> None:
    assert error_of(await bench.complete(echo=True, logprobs=1), 400)["param"] == "logprobs"


async def test_an_unknown_argument_is_refused_in_openais_words(bench) -> None:
    error = error_of(await bench.chat(colour="red"), 400)
    assert error["message"] == "Unrecognized request argument supplied: colour"
    assert error["param"] == "colour"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"259": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"05": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", [1]),
        ("seed", 2**63),
        ("n", 0),
        ("n", 17),
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stop", "x" * 257),
        ("stop", 5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("top_logprobs", 3),
        ("top_logprobs", 21),
        ("messages", []),
        ("messages", "hi"),
        ("model", 5),
    ],
)
async def test_a_wrong_value_is_refused_by_name(bench, name, value) -> None:
    error = error_of(await bench.chat(**{name: value}), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"].split("[")[0].split(".")[0] == name
    assert bench.generator.requests == []


async def test_two_different_limits_contradict_each_other(bench) -> None:
    assert error_of(await bench.chat(max_tokens=1, max_completion_tokens=2), 400)["param"] == "max_completion_tokens"


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_a_missing_parameter_is_named(bench, missing) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    del body[missing]
    error = error_of(await bench.client.post("/v1/chat/completions", json=body), 400)
    assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"model": NaN}'])
async def test_a_body_that_is_no_json_object_is_a_400(bench, body) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/chat/completions", "/v1/completions"):
        error_of(await bench.client.post(path, content=body, headers=headers), 400)


async def test_an_unknown_model_is_a_404(bench) -> None:
    error = error_of(await bench.chat(model="gpt-9"), 404)
    assert (error["param"], error["code"], error["type"]) == ("model", "model_not_found", "invalid_request_error")
    assert "gpt-9" in error["message"]
    assert error_of(await bench.client.get("/v1/models/gpt-9"), 404)["code"] == "model_not_found"


async def test_unknown_paths_and_methods(bench) -> None:
    assert error_of(await bench.client.get("/v1/images"), 404)["code"] == "unknown_url"
    response = await bench.client.get("/v1/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
async def test_case_82_case_83_too_long_a_prompt_is_context_length_exceeded(bench, stream) -> None:
    bench.generator.max_context = 40
    for response, param in (
        (await bench.chat(messages=[{"role": "user", "content": "x" * 50}], stream=stream), "messages"),
        (await bench.complete(prompt="x" * 50, stream=stream), "prompt"),
    ):
        error = error_of(response, 400)
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
        assert error["param"] == param
        assert "maximum context length is 40 tokens" in error["message"]
        assert ("50" if param == "prompt" else "69") in error["message"]
    assert bench.generator.requests == []


async def test_case_82_prompt_and_asked_answer_must_fit_together(bench) -> None:
    bench.generator.max_context = 20
    error = error_of(await bench.complete(prompt="x" * 12, max_tokens=9), 400)
    assert error["code"] == "context_length_exceeded"
    assert "21 tokens (12 tokens in the prompt, 9 for the answer)" in error["message"]
    assert (await bench.complete(prompt="x" * 12, max_tokens=8)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raised", "status", "code", "retry_after"),
    [
        (ContextLengthExceeded(9, 8), 400, "context_length_exceeded", None),
        (QueueFull("256 requests wait already", 1.2), 429, "rate_limit_exceeded", "2"),
        (PipelineUnavailable("stage 1 is loading", 0.1), 503, "pipeline_unavailable", "1"),
        (GenerationFailed("lost"), 500, "generation_failed", None),
        (RuntimeError("secret detail"), 500, "internal_error", None),
    ],
)
async def test_errors_before_the_first_token_have_their_status(
    bench, stream, raised, status, code, retry_after
) -> None:
    bench.generator.fails_at_start = raised
    response = await bench.chat(stream=stream)
    error = error_of(response, status)
    assert error["code"] == code
    assert response.headers.get("retry-after") == retry_after
    assert "secret" not in response.text
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("raised", [GenerationFailed("the pipeline was lost"), RuntimeError("secret detail")])
async def test_an_error_in_mid_stream_is_an_event_and_the_stream_ends_properly(bench, events, raised) -> None:
    bench.generator.fails_after = (3, raised)
    *chunks, error, done = events(await bench.chat(stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hel"
    assert set(error) == {"error"}
    assert error["error"]["type"] == "server_error"
    assert "secret" not in str(error)


async def test_one_failing_choice_ends_the_others(bench) -> None:
    bench.generator.fails_after = (2, GenerationFailed("lost"))
    error_of(await bench.chat(n=3), 500)
    assert len(bench.generator.cancelled) == 3


async def test_too_large_a_body_is_refused_however_it_is_sent(bench) -> None:
    small = dataclasses.replace(bench, settings=bench.settings.model_copy(update={"max_body_bytes": 2000}))
    error = error_of(await small.chat(messages=[{"role": "user", "content": "x" * 3000}]), 413)
    assert error["code"] == "request_too_large"

    async def chunks():
        for _ in range(100):
            yield b'"' + b"x" * 100
            await asyncio.sleep(0)

    response = await small.client.post(
        "/v1/chat/completions", content=chunks(), headers={"content-type": "application/json"}
    )
    assert error_of(response, 413)["code"] == "request_too_large"


async def test_limits_of_messages_and_prompts(bench) -> None:
    limits = {"max_messages": 2, "max_prompts": 2}
    small = dataclasses.replace(bench, settings=bench.settings.model_copy(update=limits))
    message = {"role": "user", "content": "x"}
    assert error_of(await small.chat(messages=[message] * 3), 400)["param"] == "messages"
    assert error_of(await small.complete(prompt=["a"] * 3), 400)["param"] == "prompt"
