"""The relay on the loopback: bytes come through whole and late, and break off when they are told to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from bench.link import Link
from bench.relay import Relay

DEADLINE = 10.0


@asynccontextmanager
async def echo():
    async def handle(reader, writer):
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


@asynccontextmanager
async def dialled(relay):
    host, port = relay.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def round_trip(reader, writer, data):
    """The seconds that `data` took there and back, and what came back."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    writer.write(data)
    async with asyncio.timeout(DEADLINE):
        back = await reader.readexactly(len(data))
    return loop.time() - begun, back


async def test_bytes_come_through_whole_in_order_and_late_both_ways():
    data = bytes(range(256)) * 2000
    async with echo() as target, Relay(target, Link(delay=0.03, jitter=0.02)) as relay, dialled(relay) as (rd, wr):
        seconds, back = await round_trip(rd, wr, data)
        assert back == data
        assert seconds >= 0.02
        assert (relay.traffic.towards_target, relay.traffic.back) == (len(data), len(data))


async def test_the_link_may_change_while_connections_live():
    async with echo() as target, Relay(target) as relay, dialled(relay) as (rd, wr):
        await round_trip(rd, wr, b"x")
        relay.link = Link(delay=0.05)
        seconds, _ = await round_trip(rd, wr, b"x")
        assert seconds >= 0.1


async def test_a_stall_holds_what_comes_after_it():
    async with echo() as target, Relay(target) as relay, dialled(relay) as (rd, wr):
        await round_trip(rd, wr, b"x")
        relay.stall(0.1)
        seconds, back = await round_trip(rd, wr, b"y")
        assert (back, seconds >= 0.09) == (b"y", True)


async def test_one_bit_is_turned_over_once():
    async with echo() as target, Relay(target) as relay, dialled(relay) as (rd, wr):
        await round_trip(rd, wr, b"x")
        relay.corrupt()
        assert (await round_trip(rd, wr, b"aaa"))[1] == b"`aa"
        assert (await round_trip(rd, wr, b"aaa"))[1] == b"aaa"


async def test_a_cut_breaks_connections_and_refuses_new_ones_until_mended():
    async with echo() as target, Relay(target) as relay:
        async with dialled(relay) as (rd, wr):
            await round_trip(rd, wr, b"x")
            relay.cut()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await round_trip(rd, wr, b"x")
        async with dialled(relay) as (rd, wr):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await round_trip(rd, wr, b"x")
        relay.mend()
        async with dialled(relay) as (rd, wr):
            assert (await round_trip(rd, wr, b"x"))[1] == b"x"


async def test_the_end_of_a_stream_travels_like_data():
    async with echo() as target, Relay(target, Link(delay=0.02)) as relay, dialled(relay) as (rd, wr):
        wr.write(b"last words")
        wr.write_eof()
        async with asyncio.timeout(DEADLINE):
            assert await rd.read() == b"last words"


async def test_a_target_that_is_not_there_breaks_the_connection():
    async with echo() as target:
        pass
    async with Relay(target) as relay, dialled(relay) as (rd, wr):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await round_trip(rd, wr, b"x")
