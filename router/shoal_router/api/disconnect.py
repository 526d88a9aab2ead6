"""Work for a client ends when the client leaves: its sequences must not hold KV memory for nobody.

ASGI tells of it by an `http.disconnect` event, which somebody has to wait for while the work runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed the connection; nobody reads an answer any more."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; cancel it, let it clean up, and raise ClientLeft as soon as the client leaves."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
