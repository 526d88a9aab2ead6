"""An ASGI application on loopback, as a client finds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from shoaltest.waiting import until_elsewhere

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


@asynccontextmanager
async def listening(app: AsgiApp) -> AsyncIterator[str]:
    """The URL at which it is served, as long as the context lasts."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve())
    try:
        await until_elsewhere(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
