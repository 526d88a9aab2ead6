"""The router as a process: open the port, open the pipeline, serve until a signal, let running answers end.

The port opens first, so that probes and clients get an answer (503 with the reason) while the stages load. Progress
goes to stdout as JSON lines for whoever started the process: `listening` with the URL, then `ready`.

SIGTERM and SIGINT: no new connections, running answers may go on for `grace_seconds`; what is still running then ends
with an error in its stream. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp

from shoal.errors import ResourceError
from shoal.logs import announce
from shoal_router.connections import BoundedConnection
from shoal_router.generation import Generator, PipelineUnavailable
from shoal_router.https import ServerCertificate

log = logging.getLogger(__name__)

# How often a router whose pipeline does not open says why in its log.
_WAITING_NOTE_SECONDS = 30.0
# Time for the last events and the connections' end, after running answers were told to stop.
_CLOSING_SECONDS = 3.0


_PLAIN: Final[dict[str, Any]] = {
    "http": BoundedConnection,
    "log_config": None,
    "access_log": False,
    "lifespan": "off",
    "ws": "none",
    "server_header": False,
}


class Runtime(Generator, Protocol):
    """A Generator with a life: Fleet, or a StepLoop alone."""

    async def start(self) -> None:
        """Begin to open the pipeline."""
        ...

    async def wait_ready(self, timeout: float) -> None:
        """Raises PipelineUnavailable after `timeout` seconds."""
        ...

    async def stop(self) -> None:
        """Fail what is running, close the pipeline; may be called twice."""
        ...


class Companion(Protocol):
    """What goes on beside the runtime and the API: the draft model's client, the grammars' process, the measurer."""

    async def start(self) -> None:
        """Begin; returns at once."""
        ...

    async def stop(self) -> None:
        """End; may be called twice."""
        ...


def listen(host: str, port: int, option: str = "--listen") -> socket.socket:
    """A bound socket. Raises ResourceError when the port is taken or the address is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(2048)  # uvicorn listens again; here so that a taken port is found before anything else starts
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ResourceError(f"port {port} on {host} is in use: choose another with {option} {host}:PORT") from None
        raise ResourceError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return bound


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Where a client on this machine reaches the socket."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def http_server(app: ASGIApp, shutdown_seconds: int, certificate: ServerCertificate | None = None) -> uvicorn.Server:
    """A server that leaves signals alone and says nothing by itself; with a `certificate` over HTTPS."""
    return _Server(
        uvicorn.Config(
            app,
            **_PLAIN,
            ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
            # Longer than the pools of common clients keep a connection, so that they close it, not we under a request.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=shutdown_seconds,
        )
    )


async def serve(
    app: FastAPI,
    runtime: Runtime,
    bound: socket.socket,
    grace_seconds: float,
    companions: Sequence[Companion] = (),
    when_stopping: Callable[[], None] = lambda: None,
    metrics: tuple[Starlette, socket.socket] | None = None,
    certificate: ServerCertificate | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, when `when_stopping` is called first: it ends what has no end of its own.

    With a `certificate` over HTTPS. `metrics`: a second app, with its socket.
    """
    server = http_server(app, math.ceil(grace_seconds + _CLOSING_SECONDS), certificate)
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def stop_running() -> None:
        tasks.add(asyncio.create_task(runtime.stop(), name="stop running answers"))

    def stop(number: int) -> None:
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        if server.should_exit:
            server.force_exit = True
        else:
            server.should_exit = True
            when_stopping()
            loop.call_later(grace_seconds, stop_running)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    for companion in companions:
        await companion.start()
    await runtime.start()
    tasks.add(asyncio.create_task(_announce_ready(runtime), name="announce ready"))
    if certificate is not None:
        tasks.add(asyncio.create_task(certificate.keep_new(), name="certificate"))
    facts = {"url": url_of(bound, "http" if certificate is None else "https")}
    beside: list[asyncio.Task[None]] = []
    figures = _Server(uvicorn.Config(metrics[0], timeout_graceful_shutdown=1, **_PLAIN)) if metrics else None
    if metrics is not None and figures is not None:
        facts["metrics"] = f"{url_of(metrics[1])}/metrics"
        beside.append(asyncio.create_task(_serve_metrics(figures, metrics[1]), name="metrics"))
    announce("listening", **facts)
    try:
        await server.serve(sockets=[bound])
    finally:
        if figures is not None:
            figures.should_exit = True
        await asyncio.gather(*beside)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runtime.stop()
        for companion in companions:
            await companion.stop()


async def _serve_metrics(server: uvicorn.Server, bound: socket.socket) -> None:
    try:
        await server.serve(sockets=[bound])
    except Exception:
        log.exception("metrics are not served any more; the API is")


async def _announce_ready(runtime: Runtime) -> None:
    while True:
        try:
            await runtime.wait_ready(_WAITING_NOTE_SECONDS)
        except PipelineUnavailable as error:
            log.warning("not ready yet: %s", error)
        else:
            announce("ready")
            return


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: they would end the process before the pipeline is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield
