"""The way to another node: round trip and throughput, measured between two doctors over TCP.

listener: shoal doctor --listen :9090        other: shoal doctor --peer pc-02:9090

client sends PING bytes, gets them back, PINGS times; then BULK bytes; gets one byte when all have come
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import suppress
from typing import Final

from shoal.errors import ResourceError
from shoal_stage.doctor.surroundings import Link

PING: Final = 64
PINGS: Final = 30
BULK: Final = 24 << 20
SECONDS: Final = 20.0
"""For the whole measurement: 24 MB take two seconds on a 100 Mb/s link."""
_CHUNK: Final = 1 << 18


async def measure(peer: str, seconds: float = SECONDS) -> Link:
    """Measure the way to the doctor that listens at host:port."""
    host, _, port = peer.rpartition(":")
    if not host or not port.isdecimal():
        return Link(peer, error="it is not HOST:PORT")
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                return await _measure(peer, reader, writer)
            finally:
                writer.close()
    except TimeoutError:
        return Link(peer, error=f"no end after {seconds:g} s")
    except (OSError, asyncio.IncompleteReadError) as error:
        return Link(peer, error=getattr(error, "strerror", None) or "the other side hung up")


async def _measure(peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Link:
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        writer.write(bytes(PING))
        await reader.readexactly(PING)
        trips.append(time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(BULK // _CHUNK):
        writer.write(bytes(_CHUNK))
        await writer.drain()
    await reader.readexactly(1)
    rate = BULK / (time.perf_counter() - began) / 1e6
    return Link(peer, statistics.median(trips) * 1e3, rate)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The listener's side of one measurement."""
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(SECONDS):
            for _ in range(PINGS):
                writer.write(await reader.readexactly(PING))
            left = BULK
            while left:
                chunk = await reader.read(min(left, _CHUNK))
                if not chunk:
                    break
                left -= len(chunk)
            writer.write(b"." if not left else b"")
            await writer.drain()
    writer.close()


async def listen(address: str) -> None:
    """Answer measurements until cancelled. Raises ResourceError when the port is not to be had."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ResourceError(f"--listen {address}: HOST:PORT or :PORT is wanted")
    try:
        server = await asyncio.start_server(answer, host.strip("[]") or None, int(port))
    except OSError as error:
        raise ResourceError(f"cannot listen on {address}: {error.strerror}") from error
    async with server:
        await server.serve_forever()
