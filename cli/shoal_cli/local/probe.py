"""Asking a stage whether it still answers, as a kubelet does in a cluster: a process may live and be of no use.

A process that ends is seen at once by its parent; one that is stopped, or whose event loop hangs, is not. Only silence
counts here: an answer that is an error is an answer, and a connection is refused by a process that is about to end.
"""

from __future__ import annotations

import asyncio

import grpc

from shoal.wire.pulse import Strikes
from shoal.wire.stage_pb2 import DescribeRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal.wire.tls import TlsDirectory
from shoal.wire.transport import open_channel

PROBE_SECONDS = 0.75
"""Between two questions, and for each answer."""

STRIKES = 3


async def fall_silent(address: str, tls: TlsDirectory | None = None) -> None:
    """Return when the stage at `address` has left several questions in a row without an answer."""
    strikes = Strikes(STRIKES)
    channel = open_channel(address, 0, tls)
    try:
        stub = StageStub(channel)  # type: ignore[no-untyped-call]
        while True:
            try:
                await stub.Describe(DescribeRequest(), timeout=PROBE_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    if strikes.tick():
                        return
                    continue
            strikes.heard()
            await asyncio.sleep(PROBE_SECONDS)
    finally:
        await channel.close(None)
