"""What every HTTP request goes through before and after the endpoints: its id, the body's size, the log line.

Plain ASGI: Starlette's BaseHTTPMiddleware would stand between the stream and the client and hide the disconnect.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal_router.api.errors import ApiError, from_exception

log = logging.getLogger("shoal_router.access")

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# How far beyond the limit a body is read, as a multiple of it, only to be thrown away.
_DISCARD_FACTOR = 4
# Probes come every few seconds and would drown the rest.
_QUIET_PATHS = ("/health", "/health/live", "/health/ready")
_HTTP_ERRORS = 400


def request_id_of(scope: Scope) -> str:
    """The id that Edge gave to this request."""
    return str(scope["state"]["request_id"])


def key_of(scope: Scope) -> str:
    """The short name of the caller's API key; '' where none is asked for."""
    return str(scope["state"].get("api_key", ""))


def note_rejection(scope: Scope, error: ApiError) -> None:
    """Remember why this request is answered with an error: its code, or the status where there is none."""
    scope["state"]["rejected"] = error.code or str(error.status)


class Edge:
    """x-request-id in and out (made up when there is none or it is unusable), body limit, one log line a request."""

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, body_seconds: float, rejected: Callable[[str], None] = lambda _: None
    ) -> None:
        """`rejected` hears why a request was answered with an error."""
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds
        self._rejected = rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0  # until the answer begins

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        started = time.monotonic()
        declared = headers.get(b"content-length", b"")
        try:
            if declared.isdigit() and int(declared) > self._max_body_bytes:
                await self._discard(receive, 0)
                raise self._too_large()
            await self._app(scope, self._limited(receive), send_with_id)
        except Exception as error:
            if status:  # the answer has begun: nothing can be said any more, but the connection's end
                raise
            refusal = from_exception(error, request_id=request_id)
            note_rejection(scope, refusal)
            await refusal.response()(scope, receive, send_with_id)
        finally:
            if status >= _HTTP_ERRORS and scope["path"] not in _QUIET_PATHS:
                self._rejected(scope["state"].get("rejected", str(status)))
            if scope["path"] not in _QUIET_PATHS:
                _log_request(scope, request_id, status, time.monotonic() - started)

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that refuses a body which grows beyond the limit, or stops coming."""
        received = 0
        complete = False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:  # from here on it only waits for the client to leave
                return await receive()
            try:
                async with asyncio.timeout(self._body_seconds):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                if not complete:
                    await self._discard(receive, received)
                raise self._too_large()
            return message

        return limited

    async def _discard(self, receive: Receive, received: int) -> None:
        """Read on within reason: a connection that is closed under a sending client loses the answer with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._body_seconds):
                while received <= _DISCARD_FACTOR * self._max_body_bytes:
                    message = await receive()
                    received += len(message.get("body", b""))
                    if not message.get("more_body"):
                        return

    def _too_large(self) -> ApiError:
        message = f"The body has more than {self._max_body_bytes} bytes, which is this server's limit."
        return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})

    def _too_slow(self) -> ApiError:
        message = f"The body stopped coming: nothing for {self._body_seconds:g} s."
        return ApiError(408, message, code="request_timeout", headers={"Connection": "close"})


def _log_request(scope: Scope, request_id: str, status: int, seconds: float) -> None:
    facts = {
        "request_id": request_id,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "seconds": round(seconds, 4),
    }
    if "api_key" in scope["state"]:
        facts["api_key"] = scope["state"]["api_key"]
    log.info("%s %s %s", scope["method"], scope["path"], status or "client left", extra=facts)
