"""The page at `/` and the stream that it draws: static files (see shoal.page), and the events of a Watch.

The files come without a key; the stream asks for one like the rest of the API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shoal.page import EVENTS_PATH, HEADERS, MOST_WATCHERS, PAGE_PREFIX, page_files
from shoal_router.api.answers import STREAM_HEADERS
from shoal_router.api.disconnect import ClientLeft, while_connected
from shoal_router.api.errors import ApiError
from shoal_router.watch.feed import TooManyWatchers, Watch


def add_page(app: FastAPI, watch: Watch) -> None:
    """Serve the page and its events."""
    found = page_files("shoal_router")

    def answer(name: str, request: Request) -> Response:
        file = found.get(name)
        if file is None:
            raise HTTPException(404)
        headers = {**HEADERS, "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.kind, headers=headers)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return answer("index.html", request)

    @app.api_route(PAGE_PREFIX + "{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def part(name: str, request: Request) -> Response:
        return answer(name, request)

    @app.get(EVENTS_PATH, include_in_schema=False)
    async def events() -> Response:
        return _EventStream(watch)


class _EventStream(Response):
    """The events as a body without an end."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(status_code=200, headers=STREAM_HEADERS)
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the watcher leaves or the router stops. Raises ApiError if too many watch."""
        del scope
        try:
            await while_connected(receive, self._stream(send))
        except ClientLeft:
            return

    async def _stream(self, send: Send) -> None:
        begun = False
        async with aclosing(_or_refusal(self._watch)) as events:
            async for body in events:
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    begun = True
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if not begun:
            raise ApiError(503, "The router is stopping.", retry_after=1)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _or_refusal(watch: Watch) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(watch.events()) as events:
            async for body in events:
                yield body
    except TooManyWatchers as error:
        message = f"{MOST_WATCHERS} pages watch this router already."
        raise ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=5) from error
