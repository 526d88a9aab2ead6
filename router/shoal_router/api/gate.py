"""Lets in who has a key, and nobody for more requests, at a time or in a minute, than a key may have.

Plain ASGI inside Edge, which turns what is raised here into an answer. Probes stay open: a kubelet has no key, and they
tell no text. So do the page's files, which ask for the key themselves. Watching needs a key, but does not count as a
request that runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.api_keys import ApiKeys
from shoal.page import EVENTS_PATH, PAGE_PREFIX
from shoal_router.api.errors import ApiError
from shoal_router.api.rates import Rates

OPEN_PATHS: Final = frozenset({"/health", "/health/live", "/health/ready", "/"})


class Gate:
    """Invariant: `_running` counts, for each key, the requests that have begun and not ended."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        requests_per_key: int | None = None,
        requests_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._keys = keys
        self._most = requests_per_key
        self._rates = Rates(requests_per_minute) if requests_per_minute is not None else None
        self._clock = clock
        self._running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Raises ApiError."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or scope["path"].startswith(PAGE_PREFIX):
            await self._app(scope, receive, send)
            return
        owner = self._owner(scope)
        scope["state"]["api_key"] = owner
        if scope["path"] == EVENTS_PATH:
            await self._app(scope, receive, send)
            return
        if self._most is not None and self._running[owner] >= self._most:
            raise ApiError(
                429,
                f"This API key has {self._running[owner]} requests running, which is the most that it may have.",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=1,
            )
        self._check_rate(owner)
        self._running[owner] += 1
        try:
            await self._app(scope, receive, self._with_rate(owner, send))
        finally:
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]

    def _check_rate(self, owner: str) -> None:
        if self._rates is None:
            return
        now = self._clock()
        self._rates.forget_idle(now)
        if wait := self._rates.take(owner, now):
            raise ApiError(
                429,
                "This API key has sent as many requests as it may in a minute.",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=wait,
                headers=self._rates.headers(owner, now),
            )

    def _with_rate(self, owner: str, send: Send) -> Send:
        """`send` that tells, where there is a rate, how much of it is left."""
        if self._rates is None:
            return send
        told = [(name.encode(), value.encode()) for name, value in self._rates.headers(owner, self._clock()).items()]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *told]
            await send(message)

        return sending

    def _owner(self, scope: Scope) -> str:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not key.strip():
            raise _refused("You didn't provide an API key: send it as `Authorization: Bearer KEY`.", None)
        owner = self._keys.owner(key.strip())
        if owner is None:
            raise _refused("Incorrect API key provided.", "invalid_api_key")
        return owner


def _refused(message: str, code: str | None) -> ApiError:
    return ApiError(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})
