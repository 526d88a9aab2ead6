"""The gateway as a process: serve until a signal, let running answers end.

SIGTERM and SIGINT: no new connections; what is running may end within `grace_seconds`. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from contextlib import AbstractAsyncContextManager, nullcontext

from shoal.api_keys import ApiKeys
from shoal.logs import announce
from shoal_router.gateway.app import create_gateway, gateway_client
from shoal_router.gateway.routes import Routes
from shoal_router.serve import http_server, url_of


async def serve_gateway(
    routes: Routes,
    bound: socket.socket,
    *,
    answer_seconds: float,
    grace_seconds: float,
    keys: ApiKeys | None = None,
    beside: AbstractAsyncContextManager[object] | None = None,
) -> None:
    """Serve until a signal; `beside` keeps the routes true meanwhile."""
    async with gateway_client(answer_seconds) as client, beside or nullcontext():
        server = http_server(create_gateway(routes, client, keys), math.ceil(grace_seconds))

        def stop() -> None:
            server.force_exit = server.should_exit
            server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        announce("listening", url=url_of(bound))
        await server.serve(sockets=[bound])
