"""An `Idempotency-Key` keeps a request from running twice at the same time.

A client whose connection broke sends its request again, maybe before the router has noticed that the first one has lost
its reader. The second is then refused with 409, which clients retry, until the first has ended. What a request answered
is not kept: a key says that two requests are the same one, not that the answer is to be repeated. A router that was
started anew knows no keys, and needs none: the stages drop what the old one had running when the new one opens them.

Plain ASGI inside Gate: keys belong to the caller's API key.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from shoal_router.api.edge import key_of
from shoal_router.api.errors import ApiError, invalid

HEADER: Final = "Idempotency-Key"
_HEADER_BYTES: Final = HEADER.lower().encode()
_LONGEST: Final = 255


class Once:
    """Invariant: `_running` holds the keys of the requests that have begun and not ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: set[tuple[str, bytes]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Raises ApiError."""
        keys = [value for name, value in scope["headers"] if name == _HEADER_BYTES] if scope["type"] == "http" else []
        if not keys or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if len(keys) > 1 or not 0 < len(keys[0]) <= _LONGEST:
            raise invalid(f"{HEADER} must be one value of 1 to {_LONGEST} bytes.", param=HEADER)
        mine = key_of(scope), keys[0]
        if mine in self._running:
            raise ApiError(
                409,
                f"A request with this {HEADER} is still running: try again when it has ended.",
                param=HEADER,
                code="request_in_progress",
                retry_after=1,
            )
        self._running.add(mine)
        try:
            await self._app(scope, receive, send)
        finally:
            self._running.remove(mine)
