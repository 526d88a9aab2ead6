"""`/healthz` and `/readyz`: whether the process should be started afresh, and whether its watches have their lists."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiohttp import web


class Watched(Protocol):
    """What the probes ask."""

    def unhealthy(self, now: float) -> str | None:
        """Why the process should be started again; None when it is well."""
        ...

    @property
    def ready(self) -> bool:
        """Whether every watch has its first list."""
        ...


async def serve_health(watched: Watched, port: int) -> web.AppRunner:
    """Answer probes on `port`; call `cleanup` of what is returned to stop."""

    async def healthz(_: web.Request) -> web.Response:
        problem = watched.unhealthy(asyncio.get_running_loop().time())
        return web.Response(text=problem or "alive", status=503 if problem else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready" if watched.ready else "listing", status=200 if watched.ready else 503)

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
