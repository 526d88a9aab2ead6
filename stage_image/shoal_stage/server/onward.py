"""The hop to the next stage: one channel, one Run stream, its credits and its pulse, for one epoch.

Opening it compares the two stages: neighbours that hold different models, or were built from different versions, would
compute plausible nonsense together, so they refuse each other with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from grpc.aio import EOF  # type: ignore[attr-defined]

from shoal.errors import StageError
from shoal.wire.codec import decode_description, decode_progress
from shoal.wire.errors import DigestMismatch, StageNotReady, StageUnreachable, WrongPlace, from_rpc_error
from shoal.wire.messages import StageDescription, StageProgress, StageState
from shoal.wire.pulse import Strikes, silence
from shoal.wire.stage_pb2 import Credit, DescribeRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal.wire.tls import TlsDirectory
from shoal.wire.transport import open_channel
from shoal_stage.server.compute import Outgoing

CONNECT_SECONDS = 5.0


def check_neighbours(mine: StageDescription, other: StageDescription, where: str) -> None:
    """Refuse a next stage that cannot continue this one: still loading, other model, other blocks, other versions."""
    if other.state is not StageState.READY:
        raise StageNotReady(f"next stage at {where} is {other.state.value.lower()}: {other.detail}")
    if other.model_digest != mine.model_digest:
        raise DigestMismatch(
            f"next stage at {where} holds model {other.model_digest[:12]}…, this one {mine.model_digest[:12]}…"
        )
    if other.block_start != mine.block_end:
        raise WrongPlace(f"next stage at {where} starts at block {other.block_start}, block {mine.block_end} is due")
    if other.exact != mine.exact:
        raise WrongPlace(f"next stage at {where} has exact={other.exact}, this one exact={mine.exact}")
    for name in sorted(mine.versions.keys() | other.versions.keys()):
        here, there = mine.versions.get(name, "missing"), other.versions.get(name, "missing")
        if here != there:
            raise WrongPlace(f"next stage at {where} runs {name} {there}, this one {here}: run the same on every node")


class NextHop:
    """Invariant: at most as many frames are on their way to the next stage as it gave credit for."""

    def __init__(self, address: str, max_frame_bytes: int, tls: TlsDirectory | None = None) -> None:
        self.address = address
        self._channel = open_channel(address, max_frame_bytes, tls)
        self._stub: Any = StageStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = self._stub.Run()
        self._credits = 0
        self._granted = asyncio.Event()
        self._strikes = Strikes()
        self._in_use = asyncio.Event()

    async def connect(self, mine: StageDescription) -> None:
        """Compare the stages and wait for the first credit. Raises a StageError within CONNECT_SECONDS."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                message = await self._stub.Describe(DescribeRequest(), wait_for_ready=True)
                check_neighbours(mine, decode_description(message), self.address)
                await self._read_credit()
        except TimeoutError:
            raise StageUnreachable(
                f"next stage at {self.address} did not answer within {CONNECT_SECONDS:.0f} s: is it running?"
            ) from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.address) from None

    async def watch(self, hear: Callable[[tuple[StageProgress, ...]], None]) -> StageError:
        """Take credits in until the stream ends or falls silent; returns why. `hear` gets what each pulse says."""
        reading = asyncio.ensure_future(self._listen(hear))
        silent = asyncio.ensure_future(self._fall_silent())
        try:
            await asyncio.wait({reading, silent}, return_when=asyncio.FIRST_COMPLETED)
            return (reading if reading.done() else silent).result()
        finally:
            for each in (reading, silent):
                each.cancel()
            await asyncio.gather(reading, silent, return_exceptions=True)

    async def _listen(self, hear: Callable[[tuple[StageProgress, ...]], None]) -> StageError:
        try:
            while (credit := await self._read_credit()) is not None:
                hear(decode_progress(credit))
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error, self.address)
        return StageUnreachable(f"next stage at {self.address} ended the stream")

    async def _fall_silent(self) -> StageError:
        """The next stage knows which epoch a stream is for, and sends pulses, from its first frame on."""
        await self._in_use.wait()
        self._strikes.heard()
        await silence(self._strikes)
        return StageUnreachable(f"next stage at {self.address} has fallen silent: its machine or process is gone")

    async def write(self, message: Outgoing) -> None:
        """Send one frame as soon as there is credit for it. A broken stream waits: `watch` knows why it broke."""
        while self._credits == 0:
            self._granted.clear()
            await self._granted.wait()
        self._credits -= 1
        self._in_use.set()
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Let go of the connection; never waits for the other side."""
        self._call.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._channel.close(None)

    async def _read_credit(self) -> Credit | None:
        message = await self._call.read()
        if message is EOF:
            return None
        self._strikes.heard()
        self._credits += message.frames
        self._granted.set()
        credit: Credit = message
        return credit
