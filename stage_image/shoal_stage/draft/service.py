"""The gRPC face of the draft process: one stream a router, both directions at their own pace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpc.aio import EOF  # type: ignore[attr-defined]

from shoal.wire.drafts import decode_propose, encode_reply
from shoal.wire.stage_pb2_grpc import DraftServicer

if TYPE_CHECKING:
    from shoal_stage.draft.server import DraftServer, RouterStream

Context = Any  # grpc.aio.ServicerContext: its stubs know neither EOF nor the streams' element types


class DraftService(DraftServicer):
    """Errors leave through the Refusals interceptor."""

    def __init__(self, server: DraftServer) -> None:
        self._server = server

    async def Propose(self, request_iterator: object, context: Context) -> None:  # noqa: ARG002, N802 - gRPC's form
        """See stage.proto."""
        stream = self._server.join()
        listening = asyncio.ensure_future(self._listen(stream, context))
        answering = asyncio.ensure_future(_answer(stream, context))
        try:
            done, _ = await asyncio.wait({listening, answering}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._server.leave(stream)
            listening.cancel()
            answering.cancel()
            await asyncio.gather(listening, answering, return_exceptions=True)

    async def _listen(self, stream: RouterStream, context: Context) -> None:
        while (message := await context.read()) is not EOF:
            self._server.say(stream, decode_propose(message))


async def _answer(stream: RouterStream, context: Context) -> None:
    while True:
        await context.write(encode_reply(await stream.next()))
