"""Ending a task: over when the call returns, heard when it failed, and no shelter from one's own end."""

from __future__ import annotations

import asyncio

import pytest

from shoal.tasks import end_task


async def test_it_is_over_when_the_call_returns_and_may_be_ended_twice() -> None:
    begun, left = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(left.append, "tidied up")

    task = asyncio.create_task(work())
    await begun.wait()
    await end_task(task)
    await end_task(task)
    assert (task.cancelled(), left) == (True, ["tidied up"])
    await end_task(None)


async def test_what_it_failed_with_is_heard() -> None:
    async def fail() -> None:
        raise ZeroDivisionError("a defect")

    task = asyncio.create_task(fail())
    await asyncio.wait((task,))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        await end_task(task)


async def test_who_is_cancelled_while_waiting_is_cancelled() -> None:
    begun, asked, let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def reluctant() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asked.set()
            await let_go.wait()

    task = asyncio.create_task(reluctant())
    await begun.wait()
    ending = asyncio.create_task(end_task(task))
    await asked.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    let_go.set()
    await end_task(task)
