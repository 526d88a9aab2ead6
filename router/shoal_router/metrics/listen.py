"""The router's second port: `/metrics` for Prometheus, and `/measured` for the operator.

Apart from the API's port, so that whoever may ask the model need not be shown how busy it is, and so that a client's
load, limits and keys do not stand between Prometheus and the figures. It is served on the router's event loop: what is
read changes there, and a scrape takes a few milliseconds twice a minute.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.measured import MEASURED_PATH, Measured


def metrics_app(registry: CollectorRegistry, measured: Callable[[], Measured | None] = lambda: None) -> Starlette:
    """The ASGI application; whatever is neither is a 404."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    async def figures(_: Request) -> Response:
        found = measured()
        if found is None:
            return Response(status_code=204)
        return Response(found.model_dump_json(by_alias=True), media_type="application/json")

    return Starlette(routes=[Route("/metrics", metrics), Route(MEASURED_PATH, figures)])
