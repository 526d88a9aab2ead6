"""What routers say on their second port: `/lost`, a line whenever a stage is gone or back, and what they measured.

Plain HTTP from pod to pod, as Prometheus asks: no token in the router's pod, and no right of the operator's, is needed
for it. These are the two things that the operator learns from anybody but the API server. What they say can do no more
than bring a standby into use that the ShardedModel asked for, and put figures into the status.

`HttpRouters` is the real one, `FakeRouters` answers from memory.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError

from shoal.measured import MEASURED_PATH, Measured
from shoal_operator import names

SILENCE_SECONDS: Final = 10.0
"""A router says something every three seconds; one that does not is gone, or no way leads to it."""
CONNECT_SECONDS: Final = 3.0
FIGURES_SECONDS: Final = 2.0

_UNLIKE_A_ROUTER: Final = (aiohttp.ClientError, OSError, TimeoutError, ValidationError, ValueError)

log = logging.getLogger(__name__)

Listen = Callable[[str], AsyncGenerator[frozenset[str], None]]
"""`Routers.lost` of any of them."""


class RouterSilent(Exception):
    """The router does not answer, or not what a router does."""


class Routers(Protocol):
    """The seam. Routers are named by their pods' addresses."""

    def lost(self, address: str) -> AsyncGenerator[frozenset[str], None]:
        """The addresses of the stages that are gone, each time that the router says so, until it is gone itself: then
        the iterator ends, or raises RouterSilent."""
        ...

    async def measured(self, address: str) -> Measured | None:
        """What the router has measured; None: nothing yet, or it does not answer, and is to be asked again later."""
        ...


class HttpRouters:
    """See Routers. Every wait has a deadline."""

    async def lost(self, address: str) -> AsyncGenerator[frozenset[str], None]:
        """See Routers.lost."""
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        try:
            async with _asked(address, "/lost", timeout) as response:
                async for line in response.content:
                    yield _Said.model_validate_json(line).lost
        except _UNLIKE_A_ROUTER as error:
            why = error or type(error).__name__
            raise RouterSilent(f"the router at {address} says nothing of its stages: {why}") from error

    async def measured(self, address: str) -> Measured | None:
        """See Routers.measured. Figures are worth a line in the status, and no condition depends on them."""
        try:
            async with _asked(address, MEASURED_PATH, aiohttp.ClientTimeout(total=FIGURES_SECONDS)) as response:
                return Measured.model_validate_json(await response.read()) if response.status == 200 else None
        except _UNLIKE_A_ROUTER as error:
            log.debug("the router at %s does not say what it measured: %s", address, error)
            return None


class FakeRouters:
    """See Routers. `found` by address; none of its stages is ever gone."""

    def __init__(self) -> None:
        self.found: dict[str, Measured] = {}
        self.asked: list[str] = []

    async def lost(self, address: str) -> AsyncGenerator[frozenset[str], None]:
        """See Routers.lost."""
        self.asked.append(address)
        yield frozenset()

    async def measured(self, address: str) -> Measured | None:
        """See Routers.measured."""
        self.asked.append(address)
        return self.found.get(address)


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    lost: frozenset[str]


@asynccontextmanager
async def _asked(address: str, path: str, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
    host = f"[{address}]" if ":" in address else address
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://{host}:{names.METRICS_PORT}{path}", raise_for_status=True) as response,
    ):
        yield response
