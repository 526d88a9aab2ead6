"""`shoal gateway`: one address for several ShardedModels, by the model's name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal_operator.cluster.interface import Cluster


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway")(gateway)


def gateway(
    route: Annotated[
        list[str] | None, typer.Option(metavar="NAME=URL", help="A model's name and its router; may be repeated.")
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Find routers by the cluster's ShardedModels.")] = False,
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", "-n", help="With --cluster: only these; may be repeated.")
    ] = None,
    cluster_domain: Annotated[str, typer.Option(help="With --cluster: the domain of Services.")] = "cluster.local",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "127.0.0.1:8080",
    api_keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line, or sha256:HEX of one; callers need one.")
    ] = None,
    answer_seconds: Annotated[float, typer.Option(min=1, help="Longest silence of a router.")] = 600.0,
    grace_seconds: Annotated[float, typer.Option(min=0, help="How long answers may take to end.")] = 25.0,
) -> None:
    """Pass requests on to the router of the model that they name, and its answers back as they come."""
    import asyncio
    import time
    from functools import partial

    from shoal.api_keys import ApiKeys
    from shoal.errors import UsageError
    from shoal.logs import log_to_stderr
    from shoal_router.gateway.routes import parse_routes
    from shoal_router.gateway.serve import serve_gateway
    from shoal_router.serve import listen as bind
    from shoal_router.settings import split_address

    if bool(route) == cluster:
        raise UsageError("give the routers by --route NAME=URL, or --cluster to find them")
    if namespace and not cluster:
        raise UsageError("--namespace needs --cluster")
    log_to_stderr()
    keys = ApiKeys(api_keys, time.monotonic) if api_keys is not None else None
    bound = bind(*split_address(listen))
    serving = partial(serve_gateway, bound=bound, keys=keys, answer_seconds=answer_seconds, grace_seconds=grace_seconds)
    if not cluster:
        asyncio.run(serving(parse_routes(route or [])))
        return
    from shoal_cli.cluster import with_cluster
    from shoal_cli.gateway import ClusterRoutes, watched

    async def serve(found: Cluster) -> None:
        from shoal_operator.cluster.cache import Cache

        cache = Cache()
        beside = watched(found, cache, tuple(namespace or ()))
        await serving(ClusterRoutes(cache, cluster_domain), beside=beside)

    with_cluster(serve)
