"""The router's second port, for the cluster: `/metrics` for Prometheus, `/lost` and `/measured` for the operator.

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
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shoal.measured import MEASURED_PATH, Measured
from shoal_router.watch.lost import LostStages


def metrics_app(
    registry: CollectorRegistry, lost: LostStages, measured: Callable[[], Measured | None] = lambda: None
) -> Starlette:
    """The ASGI application; whatever is none of the three is a 404."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    async def lost_stages(_: Request) -> Response:
        return StreamingResponse(lost.lines(), media_type="application/jsonl")

    async def figures(_: Request) -> Response:
        found = measured()
        if found is None:
            return Response(status_code=204)
        return Response(found.model_dump_json(by_alias=True), media_type="application/json")

    return Starlette(routes=[Route("/metrics", metrics), Route("/lost", lost_stages), Route(MEASURED_PATH, figures)])
