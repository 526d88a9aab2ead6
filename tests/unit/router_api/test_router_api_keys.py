"""API keys: who gets in, who does not, what a replaced file changes, and how many requests a key may have."""

from __future__ import annotations

import asyncio
import hashlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api_keys import CHECK_SECONDS, ApiKeys, parse_keys
from shoal.errors import ResourceError, UsageError
from shoal_router.api.app import create_app
from shoal_router.api.errors import ApiError
from shoal_router.api.gate import Gate
from shoal_router.api.rates import Rates

HASHED = hashlib.sha256(b"sk-two").hexdigest()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "api-keys"
    path.write_text(f"# the office\nsk-one\n\nsha256:{HASHED}\n")
    return path


@pytest.fixture
async def client(bench, file):
    clock = Clock()
    keys = ApiKeys(file, clock)
    app = create_app(bench.generator, bench.text, bench.settings, keys, grammars=bench.grammars)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as made:
        made.clock = clock
        yield made


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", ["sk-one", "sk-two"])
async def test_a_key_of_the_file_gets_in(client, key):
    assert (await client.get("/v1/models", headers=bearer(key))).status_code == 200
    body = {"model": "fake", "prompt": "hi"}
    assert (await client.post("/v1/completions", json=body, headers=bearer(key))).status_code == 200


async def test_each_key_is_a_group_of_its_own_whose_answers_others_never_draft_from(client, bench):
    for key in ("sk-one", "sk-two", "sk-one"):
        body = {"model": "fake", "prompt": "hi"}
        assert (await client.post("/v1/completions", json=body, headers=bearer(key))).status_code == 200
        chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/v1/chat/completions", json=chat, headers=bearer(key))).status_code == 200
    groups = [request.group for request in bench.generator.requests]
    assert groups[0] == groups[1] == groups[4] == groups[5] != groups[2] == groups[3]
    assert all(groups)


@pytest.mark.parametrize(
    ("headers", "code", "says"),
    [
        ({}, None, "didn't provide an API key"),
        ({"Authorization": "Basic c2s="}, None, "didn't provide an API key"),
        ({"Authorization": "Bearer "}, None, "didn't provide an API key"),
        (bearer("sk-three"), "invalid_api_key", "Incorrect API key"),
        (bearer(HASHED), "invalid_api_key", "Incorrect API key"),
        (bearer(f"sha256:{HASHED}"), "invalid_api_key", "Incorrect API key"),
        (bearer("# the office"), "invalid_api_key", "Incorrect API key"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/status", "/openapi.json"])
async def test_nobody_else_does(client, headers, code, says, path):
    answer = await client.get(path, headers=headers)
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert says in error["message"]
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]


async def test_probes_need_no_key(client):
    for path in ("/health", "/health/live", "/health/ready"):
        assert (await client.get(path)).status_code == 200


async def test_a_replaced_file_counts_without_a_restart(client, file):
    file.write_text("sk-new\n")
    assert (await client.get("/v1/models", headers=bearer("sk-one"))).status_code == 200
    client.clock.now += CHECK_SECONDS
    assert (await client.get("/v1/models", headers=bearer("sk-one"))).status_code == 401
    assert (await client.get("/v1/models", headers=bearer("sk-new"))).status_code == 200


@pytest.mark.parametrize("text", [None, "two words\n", "sha256:12\n"])
async def test_a_damaged_file_leaves_the_last_keys_in_force(client, file, text):
    file.unlink() if text is None else file.write_text(text)
    client.clock.now += CHECK_SECONDS
    assert (await client.get("/v1/models", headers=bearer("sk-one"))).status_code == 200


async def test_keys_that_were_all_taken_away_let_nobody_in(client, file):
    file.write_text("")
    client.clock.now += CHECK_SECONDS
    assert (await client.get("/v1/models", headers=bearer("sk-one"))).status_code == 401


def test_a_router_does_not_start_without_keys(tmp_path):
    with pytest.raises(ResourceError, match="cannot be read"):
        ApiKeys(tmp_path / "missing", Clock())
    (tmp_path / "empty").write_text("# none yet\n")
    with pytest.raises(UsageError, match="holds no API key"):
        ApiKeys(tmp_path / "empty", Clock())
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not text"):
        ApiKeys(tmp_path / "bytes", Clock())


def test_a_bad_line_is_named():
    with pytest.raises(UsageError, match="keys:2: neither"):
        parse_keys("sk-one\nsk two\n", "keys")


def test_memory_holds_no_key(file):
    assert "sk-one" not in repr(ApiKeys(file, Clock())._hashes)


async def test_a_key_has_only_so_many_requests_at_a_time(file):
    go = asyncio.Event()
    begun: asyncio.Queue[str] = asyncio.Queue()

    async def app(scope, receive, send):
        begun.put_nowait(scope["state"]["api_key"])
        await go.wait()

    gate = Gate(app, ApiKeys(file, Clock()), requests_per_key=2)

    async def ask(key: str) -> None:
        scope = {"type": "http", "path": "/v1/models", "state": {}, "headers": [(b"authorization", b"Bearer " + key)]}
        await gate(scope, None, None)

    running = [asyncio.ensure_future(ask(b"sk-one")) for _ in range(2)]
    for _ in running:
        await begun.get()
    with pytest.raises(Exception, match="2 requests running") as refused:
        await ask(b"sk-one")
    assert refused.value.status == 429
    other = asyncio.ensure_future(ask(b"sk-two"))
    await begun.get()
    go.set()
    await asyncio.gather(*running, other)
    await ask(b"sk-one")
    assert not gate._running


async def test_a_key_has_only_so_many_requests_in_a_minute(file):
    clock = Clock()

    async def app(scope, receive, send):
        pass

    gate = Gate(app, ApiKeys(file, Clock()), requests_per_minute=3, clock=clock)

    async def ask(key: bytes = b"sk-one") -> None:
        scope = {"type": "http", "path": "/v1/models", "state": {}, "headers": [(b"authorization", b"Bearer " + key)]}
        await gate(scope, None, None)

    for _ in range(3):
        await ask()
    with pytest.raises(ApiError, match="in a minute") as refused:
        await ask()
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "20")
    await ask(b"sk-two")
    clock.now += 20.0
    await ask()
    with pytest.raises(ApiError):
        await ask()


async def test_answers_tell_how_much_of_the_rate_is_left(file):
    told = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})

    async def send(message):
        told.append({name.decode(): value.decode() for name, value in message["headers"]})

    gate = Gate(app, ApiKeys(file, Clock()), requests_per_minute=3, clock=Clock())
    scope = {"type": "http", "path": "/v1/models", "state": {}, "headers": [(b"authorization", b"Bearer sk-one")]}
    for _ in range(3):
        await gate(scope, None, send)
    with pytest.raises(ApiError) as refused:
        await gate(scope, None, send)
    told.append(refused.value.headers)
    names = [f"x-ratelimit-{name}-requests" for name in ("limit", "remaining", "reset")]
    assert [[headers[name] for name in names] for headers in told] == [
        ["3", "2", "20s"],
        ["3", "1", "40s"],
        ["3", "0", "60s"],
        ["3", "0", "60s"],
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 30)), max_size=80), st.integers(1, 20))
def test_in_no_minute_more_than_twice_the_rate_comes_in_and_whoever_waits_as_told_does(arrivals, per_minute):
    """A full bucket and what flows in meanwhile: twice the rate at most in a minute, the rate in the long run."""
    rates, now, let_in = Rates(per_minute), 0.0, {"a": [], "b": []}
    for owner, pause in arrivals:
        now += pause
        rates.forget_idle(now)
        if wait := rates.take(owner, now):
            now += wait + 1e-6
            assert rates.take(owner, now) == 0.0
        let_in[owner].append(now)
    for times in let_in.values():
        for start in times:
            assert sum(start <= each < start + 60 for each in times) <= 2 * per_minute
