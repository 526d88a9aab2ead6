"""Asking a router what it measured, over its metrics port, where cluster/routers hears of stages that are gone: the two
things that the operator learns from anybody but the API server.

`RouterFigures` is the real one; `FakeFigures` answers from memory. A router that does not answer is asked again later:
its figures are worth a line in the status, and no condition depends on them.
"""

from __future__ import annotations

import json
import logging
from typing import Final, Protocol

from aiohttp import ClientError, ClientSession, ClientTimeout
from pydantic import ValidationError

from shoal.measured import MEASURED_PATH, Measured
from shoal_operator import names

SECONDS: Final = 2.0

log = logging.getLogger(__name__)


class Figures(Protocol):
    """The seam."""

    async def measured(self, address: str) -> Measured | None:
        """What the router in the pod with this address has measured; None: nothing yet, or it does not answer."""
        ...


class RouterFigures:
    """By HTTP, with a deadline."""

    async def measured(self, address: str) -> Measured | None:
        """See Figures."""
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{names.METRICS_PORT}{MEASURED_PATH}"
        try:
            async with ClientSession(timeout=ClientTimeout(total=SECONDS)) as session, session.get(url) as answer:
                if answer.status != 200:
                    return None
                return Measured.model_validate(json.loads(await answer.text()))
        except (ClientError, TimeoutError, OSError, ValueError, ValidationError) as error:
            log.debug("%s does not say what it measured: %s", url, error)
            return None


class FakeFigures:
    """Routers by their pods' addresses."""

    def __init__(self) -> None:
        self.found: dict[str, Measured] = {}
        self.asked: list[str] = []

    async def measured(self, address: str) -> Measured | None:
        """See Figures."""
        self.asked.append(address)
        return self.found.get(address)
