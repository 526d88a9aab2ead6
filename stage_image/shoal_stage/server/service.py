"""The gRPC face of a stage: each method takes a message apart, asks the Stage, and writes what comes back."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc.aio import EOF  # type: ignore[attr-defined]

from shoal.wire.codec import decode_open, encode_description, encode_open_reply
from shoal.wire.errors import CallerRefused
from shoal.wire.stage_pb2 import (
    Credit,
    DescribeRequest,
    OpenReply,
    OpenRequest,
    ResultsRequest,
    StageDescription,
)
from shoal.wire.stage_pb2_grpc import StageServicer
from shoal.wire.tls import ROUTER, STAGE, role_of
from shoal_stage.server.session import WINDOW, Session
from shoal_stage.server.stage import Stage

Context = Any  # grpc.aio.ServicerContext: its stubs know neither EOF nor the streams' element types


class StageService(StageServicer):
    """Errors leave through the Refusals interceptor. `by_role`: callers have certificates, and roles by them."""

    def __init__(self, stage: Stage, *, by_role: bool = False) -> None:
        self._stage = stage
        self._by_role = by_role

    def _admit(self, context: Context, *roles: str) -> None:
        """A pipeline belongs to the router: a neighbour may send frames on, not open it nor read its answers."""
        role = role_of(context.auth_context()) if self._by_role else None
        if self._by_role and role not in roles:
            needed = " or ".join(roles)
            error = CallerRefused(f"the caller's certificate is of role {role or 'none'}, {needed} is needed")
            self._stage.refused.count(error)
            raise error

    async def Describe(self, request: DescribeRequest, context: Context) -> StageDescription:  # noqa: ARG002, N802 - gRPC's form
        """See stage.proto."""
        self._admit(context, ROUTER, STAGE)
        return encode_description(self._stage.describe())

    async def Open(self, request: OpenRequest, context: Context) -> OpenReply:  # noqa: N802 - gRPC's form
        """See stage.proto."""
        self._admit(context, ROUTER)
        return encode_open_reply(await self._stage.open(decode_open(request)))

    async def Run(self, request_iterator: object, context: Context) -> None:  # noqa: ARG002, N802 - gRPC's form
        """See stage.proto. The stream belongs to the epoch of its first frame; until then it holds nothing."""
        self._admit(context, ROUTER, STAGE)
        await context.write(Credit(frames=WINDOW))
        message = await context.read()
        if message is EOF:
            return
        session = self._stage.session(message.epoch)
        with session.upstream():
            session.accept(message)
            credits = asyncio.ensure_future(session.credits(context.write))
            try:
                await session.until_ended(_take(session, context))
            finally:
                credits.cancel()
                await asyncio.gather(credits, return_exceptions=True)

    async def Results(self, request: ResultsRequest, context: Context) -> None:  # noqa: N802 - gRPC's form
        """See stage.proto."""
        self._admit(context, ROUTER)
        session = self._stage.session(request.epoch)
        session.require_last()
        with session.reader():
            await session.until_ended(session.send(context.write))


async def _take(session: Session, context: Context) -> None:
    while True:
        message = await context.read()
        if message is EOF:
            return
        session.accept(message)
