"""A gRPC server with its port, its health and its errors; and the one around a Stage.

With TLS nobody without a certificate of the pipeline gets in, and a kubelet has none: its probes then have a port of
their own, which serves health and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shoal.errors import ResourceError, ShoalError, UsageError
from shoal.tracing import Traces
from shoal.wire.messages import StageDescription, StageState
from shoal.wire.stage_pb2_grpc import add_StageServicer_to_server
from shoal.wire.tls import TlsDirectory
from shoal.wire.transport import server_options
from shoal_stage.engine.interface import Engine
from shoal_stage.sample.grammar import Grammars
from shoal_stage.server.refusals import Refusals
from shoal_stage.server.refused import Handshakes, Refused
from shoal_stage.server.service import StageService
from shoal_stage.server.stage import Patience, Stage

SERVICE = "shoal.stage.v1.Stage"


class Port:
    """A server that says in grpc.health.v1 whether `service` is ready. Services are added to `grpc` before `open`."""

    def __init__(
        self, service: str, max_frame_bytes: int, tls: TlsDirectory | None = None, health_listen: str = ""
    ) -> None:
        self._service = service
        self._tls = tls
        self._health_listen = health_listen
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._health_updates: set[asyncio.Task[None]] = set()
        self.handshakes = Handshakes()
        interceptors = [Refusals(self.handshakes.heard)]
        self.grpc = grpc.aio.server(interceptors=interceptors, options=server_options(max_frame_bytes))
        self._probes = grpc.aio.server() if health_listen else None
        for server in (self.grpc, self._probes):
            if server is not None:
                health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    async def open(self, listen: str) -> str:
        """Listen on `host:port` (port 0: any free one); returns the address that others dial.

        Raises UsageError when `listen` is not an address, ResourceError when it cannot be had or TLS has no files.
        """
        await self._report(StageState.LOADING)
        credentials = self._tls.server_credentials(self.handshakes.begun) if self._tls is not None else None
        address = _bind(self.grpc, listen, credentials)
        if self._probes is not None:
            _bind(self._probes, self._health_listen)
            await self._probes.start()
        await self.grpc.start()
        return address

    async def close(self) -> None:
        """Let calls end for a moment, then close."""
        await self.grpc.stop(grace=1.0)
        if self._probes is not None:
            await self._probes.stop(grace=None)
        await asyncio.gather(*self._health_updates)

    def on_state(self, state: StageState) -> None:
        """Let health follow."""
        task = asyncio.ensure_future(self._report(state))
        self._health_updates.add(task)
        task.add_done_callback(self._health_updates.discard)

    async def _report(self, state: StageState) -> None:
        serving = health_pb2.HealthCheckResponse.ServingStatus
        status = serving.SERVING if state is StageState.READY else serving.NOT_SERVING
        for service in ("", self._service):
            await self._health.set(service, status)


class StageServer:
    """A listening stage. `start`, then `stop`; both from the event loop that made it."""

    def __init__(
        self,
        load: Callable[[], Engine],
        description: StageDescription,
        patience: Patience,
        tls: TlsDirectory | None = None,
        health_listen: str = "",
        traces: Traces | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._port = Port(SERVICE, description.max_frame_bytes, tls, health_listen)
        refused = Refused(self._port.handshakes)
        self.stage = Stage(load, description, patience, self._port.on_state, tls, traces, refused, grammars)
        service = StageService(self.stage, by_role=tls is not None)
        add_StageServicer_to_server(service, self._port.grpc)  # type: ignore[no-untyped-call]

    async def start(self, listen: str) -> str:
        """Listen, begin to load; returns the address that others dial. Raises what Port.open raises."""
        address = await self._port.open(listen)
        self.stage.start()
        return address

    @property
    def settled(self) -> asyncio.Event:
        """Loaded, or failed."""
        return self.stage.settled

    @property
    def failed(self) -> asyncio.Event:
        """The stage is over, though nobody told it to stop."""
        return self.stage.failed

    @property
    def failure(self) -> ShoalError | None:
        """Why it failed."""
        return self.stage.failure

    def ready(self) -> dict[str, object] | None:
        """What a stage that is ready says of itself; None when it is not."""
        said = self.stage.describe()
        if said.state is not StageState.READY or said.capacity is None:
            return None
        return {"detail": said.detail, "capacity": asdict(said.capacity)}

    async def stop(self) -> bool:
        """Drain and close. False when the step in hand did not end in time: only the process's end stops it then."""
        finished = await self.stage.drain()
        await self._port.close()
        return finished

    async def abort(self) -> None:
        """Close every connection at once, as a power cut would; `stop` is still due."""
        await self._port.grpc.stop(grace=None)


def _bind(server: grpc.aio.Server, listen: str, tls: grpc.ServerCredentials | None = None) -> str:
    """Give the server its port; returns the address that others dial."""
    host, port = parse_address(listen)
    _check_free(host, port)
    wanted = f"{_bracketed(host)}:{port}"
    try:
        bound = server.add_secure_port(wanted, tls) if tls is not None else server.add_insecure_port(wanted)
    except RuntimeError as error:
        raise ResourceError(f"cannot listen on {listen}: {error}") from None
    return f"{_bracketed(host)}:{bound}"


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` taken apart. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address: HOST:PORT is meant, as in 127.0.0.1:0 or [::]:50051")
    return host, int(port)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_free(host: str, port: int) -> None:
    """Try the address with a plain socket first: its errors say what is wrong, gRPC's do not."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind, proto)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ResourceError(
                f"port {port} on {host} is in use: stop what uses it, or listen on port 0 for any free port"
            ) from None
        raise ResourceError(f"cannot listen on {host}:{port}: {error.strerror}") from None
