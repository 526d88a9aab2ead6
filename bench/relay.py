"""A TCP relay that behaves like a worse network: for hops in benchmarks and in tests of failures.

    async with Relay("127.0.0.1:41234", Link(delay=0.1)) as relay:
        relay.address                # dial this instead
        relay.link = Link(delay=0.2) # holds for what comes from now on
        relay.stall(2.0)             # both ways stand still for two seconds
        relay.corrupt()              # one bit of the next piece towards the target is turned over
        relay.cut()                  # connections break as by a power cut, and new ones are refused, until mend()

`link` holds for each direction by itself: a round trip has its delay twice. Everything happens on one event loop.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from bench.link import Link, Wire

_PIECE_BYTES = 1 << 16
_PIECES_IN_FLIGHT = 1024
_CONNECT_SECONDS = 10.0
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset, as a machine does that has lost the connection."""


@dataclass(slots=True)
class Traffic:
    """Bytes that came through, by direction."""

    towards_target: int = 0
    back: int = 0


class Relay:
    """Invariant: bytes leave in the order in which they came, and none is lost while the connection lives."""

    def __init__(self, target: str, link: Link | None = None, *, seed: int = 0) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._link = link or Link()
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._wires: set[Wire] = set()
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._is_cut = False
        self._corrupt = False
        self.address = ""
        self.traffic = Traffic()

    @property
    def link(self) -> Link:
        """What each direction is like."""
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link
        for wire in self._wires:
            wire.link = link

    def stall(self, seconds: float) -> None:
        """Hold up what comes from now on for that long, in both directions."""
        until = asyncio.get_running_loop().time() + seconds
        for wire in self._wires:
            wire.stall(until)

    def corrupt(self) -> None:
        """Turn over a bit of the next piece towards the target."""
        self._corrupt = True

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        self._is_cut = True
        for task in self._connections:
            task.cancel()

    def mend(self) -> None:
        """Let connections be made again."""
        self._is_cut = False

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [writer]
        try:
            if not self._is_cut:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    onward, back = await asyncio.open_connection(*self._target)
                writers.append(back)
                await self._join(reader, back, onward, writer)
        # A cut cancels this task, which the stream machinery would report as an error of the server's.
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                _reset(each)
            del self._connections[task]

    async def _join(
        self,
        reader: asyncio.StreamReader,
        to_target: asyncio.StreamWriter,
        from_target: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._carry(reader, to_target, towards=True))
            tasks.create_task(self._carry(from_target, writer, towards=False))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, towards: bool) -> None:
        """One direction until its end of stream, which travels like data."""
        wire = Wire(self._link, random.Random(self._random.random()))
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_IN_FLIGHT)
        self._wires.add(wire)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._take(reader, wire, pieces, towards=towards))
                tasks.create_task(_deliver(pieces, writer))
        finally:
            self._wires.discard(wire)

    async def _take(
        self, reader: asyncio.StreamReader, wire: Wire, pieces: asyncio.Queue[tuple[float, bytes]], *, towards: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        piece = b"begin"
        while piece:
            piece = await reader.read(_PIECE_BYTES)
            if towards:
                self.traffic.towards_target += len(piece)
                if self._corrupt and piece:
                    self._corrupt = False
                    piece = bytes([piece[0] ^ 1]) + piece[1:]
            else:
                self.traffic.back += len(piece)
            await pieces.put((wire.arrival(loop.time(), len(piece)), piece))


async def _deliver(pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, piece = await pieces.get()
        await asyncio.sleep(due - loop.time())
        if not piece:
            writer.write_eof()
            return
        writer.write(piece)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once, without a goodbye; what has said goodbye has no socket any more."""
    if not writer.transport.is_closing():
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
