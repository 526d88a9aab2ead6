"""Waiting until every stage of a plan is ready, and saying meanwhile what each of them is doing.

Describe is asked again and again with a growing pause: a stage that is not there yet cannot announce itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc

from shoal.wire.codec import decode_description
from shoal.wire.errors import StageFailed, StageNotReady, StageUnreachable, from_rpc_error
from shoal.wire.messages import StageDescription, StageState
from shoal.wire.refused import RefusedPeers
from shoal.wire.stage_pb2 import DescribeRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal_router.pipeline.board import Seen, StageBoard
from shoal_router.pipeline.interface import Progress
from shoal_router.pipeline.plan_source import PlannedPipeline

_DESCRIBE_SECONDS = 5.0
_KNOWN_SECONDS = 2.0
"""For one that answered before, which takes it milliseconds: whoever waits to replace it should not wait longer."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Readiness:
    """What each stage of `planned` said last. `board` is told, too, for whoever looks."""

    def __init__(
        self, planned: PlannedPipeline, progress: Progress, board: StageBoard, refused: RefusedPeers | None = None
    ) -> None:
        self._planned = planned
        self._progress = progress
        self._refused = refused or RefusedPeers()
        self._board = board
        board.follow(planned)
        self._said = {
            index: f"stage {index} at {address} has not answered" for index, address in enumerate(planned.addresses)
        }

    def summary(self) -> str:
        """One line about every stage that was not ready when it was last asked, or did not answer."""
        return "; ".join(self._said[index] for index in sorted(self._said)) or "every stage is ready, but not opened"

    async def wait(self, stubs: Sequence[StageStub]) -> list[StageDescription]:
        """The descriptions of all stages, once all are READY.

        Raises a StageError when a stage has failed for good. The caller bounds the time.
        """
        tasks = [asyncio.create_task(self._ready(index, stub)) for index, stub in enumerate(stubs)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ready(self, index: int, stub: StageStub) -> StageDescription:
        where = f"stage {index} at {self._planned.addresses[index]}"
        pause = _FIRST_PAUSE
        seconds = _KNOWN_SECONDS if self._board.knows(index) else _DESCRIBE_SECONDS
        while True:
            try:
                message = await stub.Describe(DescribeRequest(), timeout=seconds)
            except grpc.aio.AioRpcError as refused:
                error = from_rpc_error(refused, self._planned.addresses[index])
                self._refused.here(error)
                if not isinstance(error, StageUnreachable | StageNotReady):
                    raise error from None
                self._board.silent(index, str(error))
                self._note(index, str(error))
            else:
                description = decode_description(message)
                self._board.heard(index, Seen(description.state.value.lower()), description.detail, description)
                if description.state is StageState.READY:
                    self._said.pop(index, None)
                    return description
                if description.state is StageState.FAILED:
                    raise StageFailed(f"{where} has failed: {description.detail}")
                self._note(index, f"{where} is {description.state.value.lower()}: {description.detail}")
            seconds = _DESCRIBE_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _note(self, index: int, line: str) -> None:
        if self._said.get(index) != line:
            self._said[index] = line
            self._progress(line)
