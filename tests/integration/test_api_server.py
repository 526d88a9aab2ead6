"""The API over a real socket: what openai-python makes of it, the bytes of a stream, clients that leave."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import aclosing, asynccontextmanager

import httpx
import openai
import pytest

from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.constrain.check import FakeCheck
from shoal_router.generation import GenerationFailed, QueueFull
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import EOS_ID, fake_text_model
from shoaltest.listening import listening
from shoaltest.waiting import until_elsewhere

TEXT = fake_text_model()
ANSWER = "Hello 😀 ไทย 世界, and so on"
MESSAGES = [{"role": "user", "content": "hi"}]
BODY = {"model": "fake", "messages": MESSAGES}


@asynccontextmanager
async def serving(generator, **settings):
    """The URL of a server over the generator."""
    app = create_app(generator, TEXT, ApiSettings(served_names=("fake",), **settings), grammars=FakeCheck())
    async with listening(app) as url:
        yield url
    assert generator.running == 0, "a sequence was left running"


@pytest.fixture
def generator():
    ids = (*TEXT.encode(ANSWER, add_special_tokens=False), EOS_ID)
    return FakeGenerator(script=lambda _: ids)


@asynccontextmanager
async def openai_client(url, **options):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, **options) as client:
        yield client


async def test_case_86_openai_python_gets_the_same_text_whole_and_streamed(generator) -> None:
    async with serving(generator) as url, openai_client(url) as client:
        whole = await client.chat.completions.create(**BODY)
        assert whole.choices[0].message.content == ANSWER
        stream = await client.chat.completions.create(
            **BODY, stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=1
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
        assert chunks[-1].usage == whole.usage
        assert chunks[-1].choices == []
        completion = await client.completions.create(model="fake", prompt="hi", max_tokens=5)
        assert completion.choices[0].text == "Hello"
        assert completion.choices[0].finish_reason == "length"
        parts = await client.completions.create(model="fake", prompt="hi", max_tokens=5, stream=True)
        assert "".join([part.choices[0].text async for part in parts]) == "Hello"
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).owned_by == "shoal"


async def test_case_86_openai_pythons_stream_helper_assembles_the_answer(generator) -> None:
    async with serving(generator) as url, openai_client(url) as client:
        async with client.chat.completions.stream(**BODY) as stream:
            events = [event.type async for event in stream]
            answer = await stream.get_final_completion()
        assert answer.choices[0].message.content == ANSWER
        assert "content.delta" in events
        assert "content.done" in events


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_case_86_curl_sees_whole_lines_as_they_come(generator) -> None:
    generator.gate, generator.gate_after = asyncio.Event(), 2
    async with serving(generator) as url:
        body = json.dumps(BODY | {"stream": True})
        argv = ["curl", "-sN", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
        curl = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(30):
            first = [await curl.stdout.readline() for _ in range(6)]  # role, "H", "e" and their empty lines
            generator.gate.set()
            rest = await curl.stdout.read()
            assert await curl.wait() == 0
    assert first[1::2] == [b"\n"] * 3
    assert [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in first[::2]] == ["", "H", "e"]
    assert rest.endswith(b"\n\ndata: [DONE]\n\n")


async def test_case_83_openai_python_raises_its_own_errors(generator) -> None:
    generator.max_context = 30
    async with serving(generator) as url, openai_client(url) as client:
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 99}])
        assert (too_long.value.code, too_long.value.param) == ("context_length_exceeded", "messages")
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**BODY, temperature=9)
        assert refused.value.param == "temperature"
        generator.fails_at_start = QueueFull("full", retry_after=3)
        with pytest.raises(openai.RateLimitError) as full:
            await client.chat.completions.create(**BODY, stream=True)
        assert full.value.response.headers["retry-after"] == "3"


async def test_an_error_in_mid_stream_reaches_openai_python(generator) -> None:
    generator.fails_after = (3, GenerationFailed("the pipeline was lost"))
    async with serving(generator) as url, openai_client(url) as client:
        stream = await client.chat.completions.create(**BODY, stream=True)
        text: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                text.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError, match="the pipeline was lost"):
            await read()
        assert "".join(text) == "Hel"


async def test_case_85_a_stream_is_neither_compressed_nor_cached(generator) -> None:
    async with serving(generator) as url, httpx.AsyncClient(base_url=url) as client:
        headers = {"accept-encoding": "gzip, br", "x-request-id": "trace-1"}
        response = await client.post("/v1/chat/completions", json=BODY | {"stream": True}, headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in response.headers
    assert "content-length" not in response.headers
    assert "no-cache" in response.headers["cache-control"]
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "trace-1"
    assert response.content.isascii(), "raw line separators would cut events in some clients"


async def test_case_85_comments_keep_a_long_prefill_and_a_long_pause_alive(generator) -> None:
    for gate_after in (0, 3):
        generator.gate, generator.gate_after = asyncio.Event(), gate_after
        async with (
            serving(generator, keep_alive_seconds=0.05) as url,
            httpx.AsyncClient(base_url=url) as client,
            client.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as response,
        ):
            assert response.status_code == 200
            comments, text = 0, ""
            async for line in response.aiter_lines():
                if line == ": keep-alive":
                    comments += 1
                    if comments == 2:
                        generator.gate.set()
                elif line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
            assert comments >= 2
            assert text == ANSWER


@pytest.mark.parametrize("gate_after", [0, 5])
async def test_case_69_a_client_that_leaves_a_stream_cancels_the_generation(generator, gate_after) -> None:
    generator.gate, generator.gate_after = asyncio.Event(), gate_after
    async with serving(generator, keep_alive_seconds=0.05) as url, httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True, "n": 2}) as response:
            seen = 0
            async with aclosing(response.aiter_lines()) as lines:
                async for line in lines:
                    seen += line.startswith("data: ")
                    if seen >= 2 + 2 * gate_after:
                        break
            assert generator.running == 2
        await until_elsewhere(lambda: generator.running == 0, seconds=1)
        assert len(generator.cancelled) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_case_69_a_client_that_leaves_before_the_first_byte_cancels_too(generator, stream) -> None:
    generator.gate = asyncio.Event()
    async with serving(generator) as url, httpx.AsyncClient(base_url=url) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=BODY | {"stream": stream}))
        await until_elsewhere(lambda: generator.running == 1)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until_elsewhere(lambda: generator.running == 0, seconds=1)
        assert len(generator.cancelled) == 1


async def test_many_streams_run_side_by_side(generator) -> None:
    async with serving(generator) as url, openai_client(url) as client:

        async def one() -> str:
            stream = await client.chat.completions.create(**BODY, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*(one() for _ in range(20))) == [ANSWER] * 20


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_beyond_the_limit_is_refused(generator, declared) -> None:
    async def chunks():
        for _ in range(15):
            yield b"x" * 1000

    async with serving(generator, max_body_bytes=5000) as url, httpx.AsyncClient(base_url=url) as client:
        body = b"x" * 15_000 if declared else chunks()
        headers = {"content-type": "application/json"}
        response = await client.post("/v1/chat/completions", content=body, headers=headers)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


async def test_a_body_that_stops_coming_is_a_408(generator) -> None:
    async with serving(generator, body_seconds=0.1) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: 50\r\n\r\n{")
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer
