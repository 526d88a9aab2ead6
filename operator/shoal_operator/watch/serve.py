"""The page at `/` and its stream of events, on a port of their own.

With API keys the port is open, and the stream asks for one, as the router's does. Without keys it is open to this pod
alone: `kubectl port-forward` gets there, for which the API server asks whether somebody may.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from shoal.api_keys import ApiKeys
from shoal.page import EVENTS_PATH, HEADERS, MOST_WATCHERS, PAGE_PREFIX, page_files

TICK_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 10.0
"""How long a stream may be silent: then a comment keeps proxies from closing it."""
STOP_SECONDS: Final = 2.0

Look = Callable[[], list[dict[str, Any]]]


class Page:
    """Hands out files and streams. Nothing is drawn while nobody watches."""

    def __init__(self, look: Look, keys: ApiKeys | None = None, tick_seconds: float = TICK_SECONDS) -> None:
        self._look = look
        self._keys = keys
        self._tick_seconds = tick_seconds
        self._files = page_files("shoal_operator")
        self._watchers = 0
        self._closed = asyncio.Event()

    def app(self) -> web.Application:
        """What is served."""
        app = web.Application()
        app.on_shutdown.append(self._close)
        app.add_routes(
            [
                web.get("/", self._index),
                web.get(PAGE_PREFIX + "{name}", self._file),
                web.get(EVENTS_PATH, self._events),
            ]
        )
        return app

    async def _index(self, request: web.Request) -> web.Response:
        return self._answer("index.html", request)

    async def _file(self, request: web.Request) -> web.Response:
        return self._answer(request.match_info["name"], request)

    def _answer(self, name: str, request: web.Request) -> web.Response:
        file = self._files.get(name)
        if file is None:
            raise web.HTTPNotFound
        headers = {**HEADERS, "ETag": file.etag}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers={**headers, "Content-Type": file.kind})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._keys is not None and self._keys.owner(_bearer(request)) is None:
            return _refusal(401, "This page needs an API key: send it as a bearer token.")
        if self._watchers >= MOST_WATCHERS:
            return _refusal(429, f"{MOST_WATCHERS} pages watch this operator already.")
        stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._watchers += 1
        try:
            await stream.prepare(request)
            await self._stream(request, stream)
        except ConnectionResetError:
            pass  # the watcher left
        finally:
            self._watchers -= 1
        return stream

    async def _close(self, _: web.Application) -> None:
        """End every stream: none ends by itself."""
        self._closed.set()

    async def _stream(self, request: web.Request, stream: web.StreamResponse) -> None:
        said, silent = "", 0.0
        # A watcher who leaves is noticed by the connection, not by the next thing that there is to say.
        while not self._closed.is_set() and request.transport is not None:
            drawn = json.dumps(self._look())
            if drawn != said:
                said, silent = drawn, 0.0
                await stream.write(f"event: models\ndata: {drawn}\n\n".encode())
            elif silent >= QUIET_SECONDS:
                silent = 0.0
                await stream.write(b": quiet\n\n")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick_seconds):
                    await self._closed.wait()
            silent += self._tick_seconds


async def serve_page(page: Page, port: int, *, everywhere: bool) -> web.AppRunner:
    """Serve on `port`, of every address or of this pod's loopback; call `cleanup` of what is returned to stop."""
    runner = web.AppRunner(page.app(), access_log=None, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, None if everywhere else "127.0.0.1", port).start()
    return runner


def _bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
