"""What routers say of their stages: `/lost` on a router's second port, a line of JSON whenever it changes.

Plain HTTP from pod to pod, as Prometheus asks: no token in the router's pod, and no right of the operator's, is needed
for it. What it says can do no more than bring a standby into use that the ShardedModel asked for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError

from shoal_operator import names

SILENCE_SECONDS: Final = 10.0
"""A router says something every three seconds; one that does not is gone, or no way leads to it."""
CONNECT_SECONDS: Final = 3.0

Listen = Callable[[str], AsyncGenerator[frozenset[str], None]]
"""From a router's address to the addresses of the stages that are gone, each time that it says so, until it is gone
itself: then the iterator ends, or raises RouterSilent."""


class RouterSilent(Exception):
    """The router does not answer, or not what a router does."""


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    lost: frozenset[str]


async def listen(address: str) -> AsyncGenerator[frozenset[str], None]:
    """See Listen."""
    host = f"[{address}]" if ":" in address else address
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{host}:{names.METRICS_PORT}/lost", raise_for_status=True) as response,
        ):
            async for line in response.content:
                yield _Said.model_validate_json(line).lost
    except (aiohttp.ClientError, OSError, TimeoutError, ValidationError, ValueError) as error:
        why = error or type(error).__name__
        raise RouterSilent(f"the router at {address} says nothing of its stages: {why}") from error
