"""The gateway between clients and two routers: by name, streams, errors, keys, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import httpx
import openai
import pytest

from shoal.api_keys import ApiKeys
from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.gateway.app import create_gateway, gateway_client
from shoal_router.gateway.routes import FixedRoutes
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import EOS_ID, fake_text_model
from shoaltest.listening import listening
from shoaltest.waiting import until_elsewhere

TEXT = fake_text_model()
MESSAGES = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def gateway(*names, keys=None, router_keys=None, more=None):
    """URL of a gateway, and the generators of a router for each name, which says its name."""
    async with AsyncExitStack() as stack:
        generators, table = {}, dict(more or {})
        for name in names:
            ids = (*TEXT.encode(f"I am {name} 😀.", add_special_tokens=False), EOS_ID)
            generators[name] = FakeGenerator(script=lambda _, ids=ids: ids)
            app = create_app(generators[name], TEXT, ApiSettings(served_names=(name,)), router_keys)
            table[name] = await stack.enter_async_context(listening(app))
        client = await stack.enter_async_context(gateway_client(30))
        url = await stack.enter_async_context(listening(create_gateway(FixedRoutes(table), client, keys)))
        yield url, generators


async def test_a_model_is_found_by_its_name_whole_and_streamed() -> None:
    async with (
        gateway("small", "org/large") as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client,
    ):
        for name in ("small", "org/large"):
            whole = await client.chat.completions.create(model=name, messages=MESSAGES)
            assert whole.choices[0].message.content == f"I am {name} 😀."
            stream = await client.chat.completions.create(model=name, messages=MESSAGES, stream=True)
            assert "".join([c.choices[0].delta.content or "" async for c in stream]) == f"I am {name} 😀."
            assert (await client.responses.create(model=name, input="hi")).output_text == f"I am {name} 😀."
            assert (await client.models.retrieve(name)).max_model_len == 4096
        assert [model.id async for model in client.models.list()] == ["org/large", "small"]


async def test_an_unknown_model_gets_404_with_the_list() -> None:
    async with gateway("small", "large") as (url, generators), httpx.AsyncClient(base_url=url) as client:
        for response in (
            await client.post("/v1/chat/completions", json={"model": "other", "messages": MESSAGES}),
            await client.get("/v1/models/other"),
        ):
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert "large, small" in error["message"]
        for body in ("no json", "[]", "{}", '{"model": 5}'):
            assert (await client.post("/v1/completions", content=body)).status_code == 400
        assert (await client.get("/v1/files")).json()["error"]["code"] == "unknown_url"
        assert not any(generator.requests for generator in generators.values())


async def test_errors_and_request_ids_are_the_routers() -> None:
    async with gateway("small") as (url, generators), httpx.AsyncClient(base_url=url) as client:
        refused = await client.post(
            "/v1/completions", json={"model": "small", "prompt": "x", "suffix": "y"}, headers={"x-request-id": "mine"}
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "suffix"
        assert refused.headers.get_list("x-request-id") == ["mine"]
        assert len(refused.headers.get_list("date")) == 1
        body = {"model": "small", "prompt": "x"}
        await client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
        assert generators["small"].requests[0].request_id == "mine"


async def test_a_kept_response_is_found_at_the_router_that_made_it() -> None:
    async with (
        gateway("small", "large") as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
    ):
        made = [await client.responses.create(model=name, input="hi") for name in ("small", "large")]
        for response in made:
            assert (await client.responses.retrieve(response.id)).output_text == response.output_text
        await client.responses.delete(made[0].id)
        with pytest.raises(openai.NotFoundError) as gone:
            await client.responses.retrieve(made[0].id)
        assert gone.value.code == "response_not_found"
        assert (await client.responses.retrieve(made[1].id)).output_text == "I am large 😀."
        follow = await client.responses.create(model="large", input="go on", previous_response_id=made[1].id)
        assert follow.previous_response_id == made[1].id


async def test_a_kept_response_may_be_at_a_router_that_is_away() -> None:
    async with (
        gateway("small", more={"gone": "http://127.0.0.1:1"}) as (url, _),
        httpx.AsyncClient(base_url=url) as client,
    ):
        made = (await client.post("/v1/responses", json={"model": "small", "input": "hi"})).json()
        assert (await client.get(f"/v1/responses/{made['id']}")).json() == made
        unknown = await client.get("/v1/responses/resp_other")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "pipeline_unavailable")
    async with gateway() as (url, _), httpx.AsyncClient(base_url=url) as client:
        nobody = await client.delete("/v1/responses/resp_other")
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "response_not_found")


async def test_a_kept_response_is_its_callers_own(tmp_path) -> None:
    """Keys that are known to one router only: the other one's 401 hides nothing."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.write_text("anna\n")
    own.write_text("bert\n")
    async with AsyncExitStack() as stack:
        more = {}
        for name, file in (("a", shared), ("b", own)):
            app = create_app(
                FakeGenerator(lambda _: (EOS_ID,)),
                TEXT,
                ApiSettings(served_names=(name,)),
                ApiKeys(file, time.monotonic),
            )
            more[name] = await stack.enter_async_context(listening(app))
        url, _ = await stack.enter_async_context(gateway(more=more))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        anna, bert = ({"authorization": f"Bearer {key}"} for key in ("anna", "bert"))
        made = (await client.post("/v1/responses", json={"model": "a", "input": "hi"}, headers=anna)).json()
        assert (await client.get(f"/v1/responses/{made['id']}", headers=anna)).json() == made
        assert (await client.get(f"/v1/responses/{made['id']}", headers=bert)).status_code == 404
        assert (await client.get(f"/v1/responses/{made['id']}")).status_code == 401


async def test_a_router_that_is_away_is_503_with_a_time_to_retry() -> None:
    async with gateway("small", more={"gone": "http://127.0.0.1:1"}) as (url, _), httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/completions", json={"model": "gone", "prompt": "x"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "pipeline_unavailable")
        assert response.headers["retry-after"]


async def test_tokens_pass_as_they_come_and_a_client_that_leaves_frees_the_router() -> None:
    async with gateway("small") as (url, generators), httpx.AsyncClient(base_url=url) as client:
        generator = generators["small"]
        generator.gate, generator.gate_after = asyncio.Event(), 2
        body = {"model": "small", "messages": MESSAGES, "stream": True}
        async with (
            client.stream("POST", "/v1/chat/completions", json=body) as response,
            aclosing(response.aiter_lines()) as lines,
        ):
            said = ""
            async with asyncio.timeout(10):
                async for line in lines:
                    said += json.loads(line[6:])["choices"][0]["delta"]["content"] if line else ""
                    if said == "I ":
                        break
            assert generator.running == 1
        left = time.monotonic()
        await until_elsewhere(lambda: not generator.running)
        assert time.monotonic() - left < 1
        assert len(generator.cancelled) == 1
        whole = asyncio.create_task(client.post("/v1/chat/completions", json=body | {"stream": False}))
        await until_elsewhere(lambda: generator.running)
        whole.cancel()
        await until_elsewhere(lambda: not generator.running)


async def test_keys_hold_at_the_gateway_and_pass_to_the_routers(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("anna\n")
    keys = ApiKeys(file, time.monotonic)
    body = {"model": "small", "prompt": "x", "max_tokens": 1}
    for options in ({"keys": keys}, {"router_keys": keys}, {"keys": keys, "router_keys": keys}):
        async with gateway("small", **options) as (url, _), httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/health/ready")).status_code == 200
            for key, status in (("anna", 200), ("bert", 401)):
                response = await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
                assert response.status_code == status
            assert (await client.post("/v1/completions", json=body)).status_code == 401


@pytest.mark.parametrize("route", ["x", "=http://a", "x=ftp://a", "x=http://", "x=http://a/v1"])
def test_routes_that_are_none_are_refused(route) -> None:
    from shoal.errors import UsageError
    from shoal_router.gateway.routes import parse_routes

    with pytest.raises(UsageError, match="NAME=URL"):
        parse_routes([route])


def test_its_image_needs_nothing_that_only_stages_and_compilers_have() -> None:
    """What the extra `gateway` does not install is not imported (cli/Dockerfile)."""
    lacks = ("shoal_stage", "openvino", "gguf", "safetensors", "rich", "psutil")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({lacks!r}));"
        "from shoal_cli.main import main;"
        "sys.exit(main(['gateway', '--route=a=http://127.0.0.1:1', '--listen=nowhere']))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "'nowhere' is not HOST:PORT" in done.stderr
