"""Opening a pipeline: wait for its stages, check that they fit, open them from the last to the first, prove the ring.

    plan ──> Describe each (until READY) ──> check_fit ──> Open last … first ──> Results, Run ──> a heartbeat

The plan is looked at again all the while: a planner that replaces a stage need not wait for the one that will never
come, nor for the deadline of a call to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from shoal.errors import PlanError, StageError
from shoal.wire.codec import decode_open_reply, encode_open
from shoal.wire.errors import StageUnreachable, WrongPlace, from_rpc_error
from shoal.wire.messages import LARGEST_GRAMMAR, DType, KvCapacity, OpenRequest, StageDescription
from shoal.wire.refused import RefusedPeers
from shoal.wire.stage_pb2 import ResultsRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal.wire.tls import TlsDirectory
from shoal.wire.transport import open_channel
from shoal_router.pipeline.board import StageBoard
from shoal_router.pipeline.fit import check_fit, next_epoch
from shoal_router.pipeline.interface import PipelineFacts, Progress
from shoal_router.pipeline.plan_source import PlannedPipeline, PlanSource
from shoal_router.pipeline.readiness import Readiness
from shoal_router.pipeline.ring import RingPipeline, RingTimes, close_channels

_OPEN_SECONDS = 10.0
_PLAN_SECONDS = 0.1
"""How often the plan is looked at while a pipeline is being opened."""
_OWN_FRAME_BYTES = 32 << 20
"""Hidden states go from stage to stage; what crosses the router's own channels are ids: a few prompts of 100 000 tokens
that were found in the prefix cache, with their histories and block tables, are some megabytes already."""
_BYTES = {DType.F32: 4, DType.F16: 2, DType.BF16: 2}


@dataclass(slots=True)
class RingOpener:
    """`prefill_chunk` bounds the tokens of a step, and thus the frames that a hop must carry.

    `hidden_dtype` None: F32 between exact stages, else BF16, which has the range of F32 at half the bytes.
    """

    source: PlanSource
    prefill_chunk: int = 256
    hidden_dtype: DType | None = None
    times: RingTimes = field(default_factory=RingTimes)
    tls: TlsDirectory | None = None
    refused: RefusedPeers = field(default_factory=RefusedPeers)
    board: StageBoard = field(default_factory=StageBoard)

    async def open(self, *, deadline_seconds: float, progress: Progress) -> RingPipeline:
        """See PipelineOpener.open."""
        readiness: Readiness | None = None
        try:
            async with asyncio.timeout(deadline_seconds):
                while True:
                    planned = self.source.read()
                    readiness = Readiness(planned, progress, self.board, self.refused)
                    pipeline = await self._unless_moved(planned, self._open(planned, readiness, progress))
                    if pipeline is not None:
                        return pipeline
                    progress("the plan has changed: starting over with its stages")
        except TimeoutError:
            state = "no plan was read" if readiness is None else readiness.summary()
            raise StageUnreachable(
                f"the pipeline is not open after {max(deadline_seconds, 0):.0f} s: {state}"
            ) from None

    async def _unless_moved(
        self, planned: PlannedPipeline, opening: Coroutine[Any, Any, RingPipeline]
    ) -> RingPipeline | None:
        """Await `opening`; gives it up, and None, as soon as the plan is another one."""
        task = asyncio.ensure_future(opening)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_PLAN_SECONDS)
                if not task.done() and self.source.read() != planned:
                    return None
            return task.result()
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and task.exception() is None:
                await task.result().close()  # it was open at the very moment of the deadline
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _moved(self, planned: PlannedPipeline) -> bool:
        """Whether the plan names other stages than `planned`. One that cannot be read right now names none."""
        try:
            return self.source.read().addresses != planned.addresses
        except PlanError:
            return False

    async def _open(self, planned: PlannedPipeline, readiness: Readiness, progress: Progress) -> RingPipeline:
        channels = [open_channel(address, _OWN_FRAME_BYTES, self.tls) for address in planned.addresses]
        try:
            stubs = [StageStub(channel) for channel in channels]  # type: ignore[no-untyped-call]
            found = await self._found(planned, readiness, stubs)
            facts = PipelineFacts(
                capacity=self._fitting(planned, found),
                epoch=next_epoch(found, time.time()),
                stages=len(found),
                model_digest=found[0].model_digest,
                vocab_size=min(stage.vocab_size for stage in found),
                exact=found[0].exact,
                addresses=planned.addresses,
            )
            progress(f"opening {facts.stages} stages in epoch {facts.epoch}")
            for index in reversed(range(facts.stages)):
                await self._open_stage(stubs[index], facts, found[index], index)
            run, results = stubs[0].Run(), stubs[-1].Results(ResultsRequest(epoch=facts.epoch))
            pipeline = RingPipeline(
                facts, channels, run, results, self.times, lambda: self._moved(planned), self.refused
            )
        except BaseException:
            await close_channels(channels)
            raise
        try:
            await pipeline.prove()
        except BaseException:
            await pipeline.close()
            raise
        return pipeline

    async def _found(
        self, planned: PlannedPipeline, readiness: Readiness, stubs: Sequence[StageStub]
    ) -> list[StageDescription]:
        found = await readiness.wait(stubs)
        for index, (address, stage) in enumerate(zip(planned.addresses, found, strict=True)):
            self.refused.said(index, address, stage.refused)
        return found

    def _fitting(self, planned: PlannedPipeline, found: Sequence[StageDescription]) -> KvCapacity:
        try:
            return check_fit(planned, found)
        except StageError as error:
            self.refused.here(error)
            raise

    async def _open_stage(self, stub: StageStub, facts: PipelineFacts, stage: StageDescription, index: int) -> None:
        dtype = self.hidden_dtype
        if dtype is None:
            dtype = DType.F32 if facts.exact else DType.BF16
        last = index + 1 == facts.stages
        request = OpenRequest(
            epoch=facts.epoch,
            stage_index=index,
            stages=facts.stages,
            model_digest=facts.model_digest,
            block_start=stage.block_start,
            block_end=stage.block_end,
            next_address="" if last else facts.addresses[index + 1],
            hidden_dtype=dtype,
            max_frame_bytes=(self.prefill_chunk + facts.capacity.sequences) * stage.hidden_size * _BYTES[dtype]
            + facts.capacity.sequences * LARGEST_GRAMMAR,
        )
        where = facts.addresses[index]
        try:
            reply = decode_open_reply(await stub.Open(encode_open(request), timeout=_OPEN_SECONDS))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, where) from None
        if reply.epoch != facts.epoch:
            raise WrongPlace(f"stage at {where} opened epoch {reply.epoch}, the pipeline is in epoch {facts.epoch}")
