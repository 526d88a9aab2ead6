"""Which stages a router says are gone, and the stream that says it."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

from shoal.wire.messages import KvCapacity, StageDescription, StageProgress, StageState
from shoal_router.generation import PipelineStatus
from shoal_router.pipeline.board import Seen, StageBoard
from shoal_router.pipeline.fake import planned_at
from shoal_router.watch.lost import LostStages, lost_stages
from shoal_router.watch.view import PipelineView

ADDRESSES = ("a:1", "b:1", "c:1")


def board(*states: Seen) -> StageBoard:
    made = StageBoard()
    count = len(states)
    made.follow(planned_at(ADDRESSES[:count], tuple((at, at + 1) for at in range(count)), None))
    capacity = KvCapacity(4, 8, 16, 512, 0, True)
    said = StageDescription(
        "d" * 64, 0, 1, 1, StageState.READY, 1, "paged", "CPU", ("CPU",), False, 8, 96, 1 << 20, capacity
    )  # fmt: skip
    for index, state in enumerate(states):
        if state is not Seen.WAITING:
            made.heard(index, Seen.READY, "", said)
        if state in (Seen.LOST, Seen.WAITING):
            made.silent(index, "no answer")
    return made


def view(*states: Seen, draining: int | None = None) -> PipelineView:
    progress = (StageProgress(draining, 5, 7, draining=True),) if draining is not None else ()
    status = PipelineStatus(
        index=0,
        ready=True,
        detail="",
        max_context=512,
        epoch=1,
        running=0,
        waiting=0,
        kv_blocks=8,
        kv_blocks_free=8,
        timings=(),
        steps=0,
    )
    return PipelineView(status, board(*states).views, progress, 0, 4, 0)


def test_a_stage_that_answered_and_does_not_now_is_gone():
    assert lost_stages([view(Seen.READY, Seen.LOST, Seen.READY)]) == ("b:1",)


def test_a_stage_that_never_answered_is_not_gone():
    assert lost_stages([view(Seen.READY, Seen.WAITING, Seen.READY)]) == ()


def test_a_stage_that_says_that_it_stops_is_gone():
    assert lost_stages([view(Seen.READY, Seen.READY, draining=1)]) == ("b:1",)


def test_a_router_that_hears_nobody_blames_nobody():
    assert lost_stages([view(Seen.LOST, Seen.LOST)]) == ()
    assert lost_stages([view(Seen.LOST)]) == ("a:1",), "of a single stage it cannot know"


async def test_the_stream_speaks_at_once_then_when_it_changes_and_now_and_then():
    shown = [view(Seen.READY, Seen.READY)]
    stages = LostStages(lambda: shown, look_seconds=0.001, quiet_seconds=0.01)
    async with asyncio.timeout(10), aclosing(stages.lines()) as lines:
        assert json.loads(await anext(lines)) == {"lost": []}
        assert json.loads(await anext(lines)) == {"lost": []}, "nothing has changed, and it still speaks"
        shown[:] = [view(Seen.READY, Seen.LOST)]
        while (said := json.loads(await anext(lines))) == {"lost": []}:
            continue
        assert said == {"lost": ["b:1"]}
        stages.close()
        assert [line async for line in lines] == []
