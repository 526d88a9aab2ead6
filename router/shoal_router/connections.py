"""A client's connection to the router, held to bounds that uvicorn leaves open.

A request's line and headers must be there within seconds, and there are no more connections than half of what the
process may hold open: whoever connects and says nothing, a thousand times, takes no answer from anybody. Bodies that
stop coming are bounded in the API itself (api/edge), answers that are not read by the event's size.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS: Final = 15.0
"""Time for a request's line and headers, from the connection or from their first byte on."""


def most_connections() -> int:
    """How many connections may be open at once; the rest of the files is for stages, logs and libraries."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 2


class BoundedConnection(HttpToolsProtocol):
    """Invariant: while headers are awaited of which a byte has come, or none ever has, `_awaiting` will end it."""

    _awaiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.close()
        else:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._stop_awaiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The first byte of a request was read."""
        super().on_message_begin()
        if self._awaiting is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        """The body may take its time: the API bounds it."""
        self._stop_awaiting()
        super().on_headers_complete()

    def _await_headers(self) -> None:
        self._awaiting = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_awaiting(self) -> None:
        if self._awaiting is not None:
            self._awaiting.cancel()
            self._awaiting = None

    def _give_up(self) -> None:
        # While an answer is still being sent, the beginning of a second request is not what holds the connection open.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self._await_headers()
