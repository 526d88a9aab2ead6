"""The client of the router: streams, figures, and every failure as one line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from shoal.errors import ResourceError, ShoalError, StageError, UsageError
from shoal_cli.client import Answer, RouterClient
from shoal_cli.sse import chunks


def delta(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], "usage": None}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}


def sse(*events: dict[str, Any] | str) -> str:
    return "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events)


def client(handler) -> RouterClient:
    return RouterClient("http://router:8000/v1/", transport=httpx.MockTransport(handler))


async def ask(handler, answer: Answer | None = None) -> list[str]:
    async with client(handler) as router:
        return [text async for text in router.stream("/v1/chat/completions", {"model": "m"}, answer or Answer())]


async def lines(text: str) -> AsyncIterator[str]:
    for line in text.splitlines():
        yield line


async def test_a_stream_yields_text_and_fills_in_the_answer() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(
            200, text=": keepalive\n\n" + sse(delta(""), delta("Hé"), delta("llo", "stop"), USAGE, "[DONE]")
        )

    answer = Answer()
    assert await ask(handler, answer) == ["Hé", "llo"]
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == (
        "Héllo",
        "stop",
        7,
        3,
    )
    assert answer.first_token_s is not None
    assert seen[0].url == "http://router:8000/v1/chat/completions"
    assert json.loads(seen[0].content)["stream_options"] == {"include_usage": True}


async def test_completions_text_is_read_too() -> None:
    event = {"choices": [{"index": 0, "text": "abc", "finish_reason": "length"}]}
    assert await ask(lambda request: httpx.Response(200, text=sse(event, "[DONE]"))) == ["abc"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (sse(delta("a")), "closed the stream before its end"),
        (
            sse(delta("a"), {"error": {"message": "the pipeline was lost"}}),
            "the answer broke off: the pipeline was lost",
        ),
        (sse("{nonsense"), "a line that is not a JSON object: '{nonsense'"),
        (sse("[1]"), r"a line that is not a JSON object: '\[1\]'"),
    ],
)
async def test_a_stream_that_breaks_off_is_a_stage_error(body: str, message: str) -> None:
    with pytest.raises(StageError, match=message):
        async for _ in chunks(lines(body)):
            pass


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, '{"error": {"message": "too long"}}', UsageError, "answered 400: too long"),
        (401, '{"error": {"message": "no key"}}', UsageError, "answered 401: no key"),
        (429, '{"error": {"message": "queue full"}}', StageError, "answered 429: queue full"),
        (503, '{"error": {"message": "loading"}}', StageError, "answered 503: loading"),
        (404, "<h1>nginx</h1>", UsageError, "answered 404: <h1>nginx</h1>"),
        (502, "", StageError, "answered 502: Bad Gateway"),
    ],
)
async def test_a_refusal_is_told_in_the_router_s_words(
    status: int, body: str, kind: type[ShoalError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        await ask(lambda request: httpx.Response(status, text=body))


async def test_no_router_is_told_with_what_to_do() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ResourceError, match="no router answers at http://router:8000: start one with `shoal run"):
        await ask(refuse)


async def test_a_connection_lost_in_mid_answer_is_a_stage_error() -> None:
    def break_off(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("reset", request=request)

    with pytest.raises(StageError, match="broke the connection: ReadError: reset"):
        await ask(break_off)


async def test_a_server_of_another_kind_is_recognised() -> None:
    async with client(lambda request: httpx.Response(200, text="hello")) as router:
        with pytest.raises(StageError, match="does not answer like a shoal router"):
            await router.status()


@pytest.mark.parametrize("body", ["{}", '{"data": null}', '{"data": [{}]}', "[]"])
async def test_a_server_without_models_is_recognised(body: str) -> None:
    async with client(lambda request: httpx.Response(200, text=body)) as router:
        with pytest.raises(StageError, match="/v1/models does not answer like a shoal router"):
            await router.models()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "not a url", "http://127.0.0.1:port"])
async def test_something_that_is_not_a_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="is not a URL of a router"):
        async with RouterClient(url) as router:
            await router.models()


async def test_the_key_is_sent() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": request.headers["Authorization"]}]})

    async with RouterClient("http://router", "s3cret", httpx.MockTransport(handler)) as router:
        assert await router.models() == ["Bearer s3cret"]


def test_tokens_per_second_leaves_the_first_token_out() -> None:
    assert Answer(first_token_s=1.0, last_token_s=3.0, completion_tokens=5).tokens_per_second == 2.0
    assert Answer(first_token_s=1.0, last_token_s=1.0, completion_tokens=1).tokens_per_second is None
    assert Answer().tokens_per_second is None
