"""A gRPC server with its port, its health and its errors; and the one around a Stage."""

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
from shoal.wire.messages import StageDescription, StageState
from shoal.wire.stage_pb2_grpc import add_StageServicer_to_server
from shoal.wire.transport import server_options
from shoal_stage.engine.interface import Engine
from shoal_stage.server.refusals import Refusals
from shoal_stage.server.service import StageService
from shoal_stage.server.stage import Patience, Stage

SERVICE = "shoal.stage.v1.Stage"


class Port:
    """A server that says in grpc.health.v1 whether `service` is ready. Services are added to `grpc` before `open`."""

    def __init__(self, service: str, max_frame_bytes: int) -> None:
        self._service = service
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._health_updates: set[asyncio.Task[None]] = set()
        self.grpc = grpc.aio.server(interceptors=[Refusals()], options=server_options(max_frame_bytes))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)

    async def open(self, listen: str) -> str:
        """Listen on `host:port` (port 0: any free one); returns the address that others dial.

        Raises UsageError when `listen` is not an address, ResourceError when it cannot be had.
        """
        host, port = parse_address(listen)
        await self._report(StageState.LOADING)
        _check_free(host, port)
        try:
            bound = self.grpc.add_insecure_port(f"{_bracketed(host)}:{port}")
        except RuntimeError as error:
            raise ResourceError(f"cannot listen on {listen}: {error}") from None
        await self.grpc.start()
        return f"{_bracketed(host)}:{bound}"

    async def close(self) -> None:
        """Let calls end for a moment, then close."""
        await self.grpc.stop(grace=1.0)
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

    def __init__(self, load: Callable[[], Engine], description: StageDescription, patience: Patience) -> None:
        self._port = Port(SERVICE, description.max_frame_bytes)
        self.stage = Stage(load, description, patience, self._port.on_state)
        add_StageServicer_to_server(StageService(self.stage), self._port.grpc)  # type: ignore[no-untyped-call]

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
