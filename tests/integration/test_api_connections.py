"""Connections that say nothing, or say it too slowly, are ended; those with a request on them are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from shoal_router import connections
from shoal_router.serve import http_server, listen

DEADLINE = 20.0
REQUEST = b"GET /slow HTTP/1.1\r\nHost: router\r\n\r\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A server whose one answer is given when the event is set; its port."""
    go_on = asyncio.Event()

    async def slow(request: Request) -> PlainTextResponse:
        await go_on.wait()
        return PlainTextResponse("done")

    bound = listen("127.0.0.1", 0)
    server = http_server(Starlette(routes=[Route("/slow", slow)]), shutdown_seconds=1)
    running = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield bound.getsockname()[1], go_on
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, DEADLINE)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closed the connection without a word."""
    return await asyncio.wait_for(reader.read(), DEADLINE) == b""


@pytest.mark.parametrize("said", [b"", b"GET /slow HT", b"GET /slow HTTP/1.1\r\nHost: router\r\n"])
async def test_headers_that_do_not_come_end_the_connection(said: bytes) -> None:
    async with serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await ended(reader)
        writer.close()


async def test_an_answer_may_take_its_time_and_the_next_request_s_headers_may_not() -> None:
    async with serving() as (port, go_on):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        silent, other = await asyncio.open_connection("127.0.0.1", port)
        # It came later and is ended already, so the time for headers is over for the first one, too.
        assert await ended(silent)
        go_on.set()
        assert (await asyncio.wait_for(reader.readline(), DEADLINE)).startswith(b"HTTP/1.1 200")
        assert (await asyncio.wait_for(reader.readuntil(b"done"), DEADLINE)).endswith(b"done")
        writer.write(REQUEST[:20])
        assert await ended(reader)
        for each in (writer, other):
            each.close()


async def test_there_are_no_more_connections_than_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: 1)
    monkeypatch.setattr(connections, "HEADER_SECONDS", DEADLINE)
    async with serving() as (port, go_on):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        refused, other = await asyncio.open_connection("127.0.0.1", port)
        assert await ended(refused)
        go_on.set()
        assert (await asyncio.wait_for(reader.readline(), DEADLINE)).startswith(b"HTTP/1.1 200")
        for each in (writer, other):
            each.close()
