"""All processes of one local run: the stages of every pipeline, the draft process if there is one, and the router.

    start    stages and draft process at once; as soon as they listen (they load on) plan.json gets the stages'
             addresses, and the router starts
    watch    a process that dies is started again under its old address, within a budget; then the run fails
    stop     the router first, so that no request meets a missing stage; then the stages

Whatever happens in between, `stop` leaves no process. That also holds when shoal itself is killed: every process is
told to die with its parent.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from shoal.errors import ShoalError
from shoal.parent import STARTER
from shoal.plan.document import Plan, StagePlan
from shoal_cli.local.process import ManagedProcess
from shoal_cli.local.restarts import RestartBudget

T = TypeVar("T")

LISTEN_DEADLINE = 60.0
"""Seconds until a process must have its port: it only imports its libraries before that."""

STOP_GRACE = 8.0
"""Seconds that the router, and then the stages, get to end by themselves; the router lets answers go on for a while."""

PLAN_FILE = "plan.json"


class Commands(Protocol):
    """The command lines of a run (launch.py)."""

    def stage(self, stage: StagePlan, listen: str) -> list[str]:
        """Command line of a stage that listens on `listen`."""
        ...

    def draft(self, listen: str) -> list[str] | None:
        """Command line of the draft process; None when the run has none."""
        ...

    def router(self, plan: Path, port: int | None = None, draft_address: str | None = None) -> list[str]:
        """Command line of the router; with `port` it listens on that one, not on its first choice."""
        ...


@dataclass(slots=True)
class _Slot:
    """The place of one process: the process that holds it now, and what it takes to fill it anew."""

    process: ManagedProcess
    make: Callable[[], ManagedProcess]
    budget: RestartBudget = field(default_factory=RestartBudget)


class LocalPipeline:
    """Owns the processes from `start` to `stop`. Use it as an async context manager."""

    def __init__(self, plan: Plan, commands: Commands, directory: Path, load_deadline: float) -> None:
        self.directory = directory
        self._plan = plan
        self._commands = commands
        self._load_deadline = load_deadline
        self._slots: list[_Slot] = []
        # With their starter's id the processes can tell that it ended before they could ask the kernel to be told.
        self._env = {**os.environ, STARTER: str(os.getpid())}

    async def __aenter__(self) -> LocalPipeline:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids: stages, draft process, router; those that were never started are left out."""
        return [slot.process.pid for slot in self._slots if slot.process.pid is not None]

    async def start(self) -> str:
        """Start everything and wait until it is ready; returns the router's URL.

        Raises the first failure: a process that died (of the kind its exit code means), or one that took too long.
        """
        stages = [stage for pipeline in self._plan.pipelines for stage in pipeline.stages]
        names = _names(self._plan)
        for name, stage in zip(names, stages, strict=True):
            self._add(name, self._commands.stage(stage, "127.0.0.1:0"))
        draft = self._commands.draft("127.0.0.1:0")
        if draft is not None:
            self._add("draft", draft)
        await _all(slot.process.start() for slot in self._slots)
        listening = await self._while_alive(slot.process.event("listening", LISTEN_DEADLINE) for slot in self._slots)
        addresses = [str(event["address"]) for event in listening]
        # Zipped to the stages: the draft process, behind them, is the rest.
        for name, slot, stage, address in zip(names, self._slots, stages, addresses, strict=False):
            slot.make = self._maker(name, self._commands.stage(stage, address))
        self._write_plan(addresses[: len(stages)])
        draft_address = None if draft is None else addresses[-1]
        if draft_address is not None and (again := self._commands.draft(draft_address)) is not None:
            self._slots[-1].make = self._maker("draft", again)

        plan = self.directory / PLAN_FILE
        router = self._add("router", self._commands.router(plan, draft_address=draft_address))
        await router.process.start()
        started, *_ = await self._while_alive(
            [
                router.process.event("listening", LISTEN_DEADLINE),
                *(slot.process.event("ready", self._load_deadline) for slot in self._slots),
            ]
        )
        url = str(started["url"])
        # Clients know the first router's port; port 0 would give its successor another.
        router.make = self._maker("router", self._commands.router(plan, urlsplit(url).port, draft_address))
        return url

    async def watch(self, report: Callable[[str], None]) -> None:
        """Restart what dies, until the budget of one process is spent: then raise its failure. Never returns."""
        await _all(self._keep(slot, report) for slot in self._slots)

    async def while_alive(self, work: Awaitable[T]) -> T:
        """Await `work`, unless a process ends before it is done: then raise that process's failure."""
        (result,) = await self._while_alive([work])
        return result

    async def stop(self) -> None:
        """Stop the router, then the stages; what does not go by itself is killed. A cancellation kills at once."""
        processes = [slot.process for slot in self._slots]
        try:
            await asyncio.gather(*(process.stop(STOP_GRACE) for process in processes if process.name == "router"))
            await asyncio.gather(*(process.stop(STOP_GRACE) for process in processes))
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL to everything, at once."""
        for slot in self._slots:
            slot.process.kill()

    def _maker(self, name: str, argv: list[str]) -> Callable[[], ManagedProcess]:
        log = self.directory / f"{name.replace(' ', '-')}.log"
        return lambda: ManagedProcess(name, argv, log, self._env)

    def _add(self, name: str, argv: list[str]) -> _Slot:
        make = self._maker(name, argv)
        slot = _Slot(make(), make)
        self._slots.append(slot)
        return slot

    def _write_plan(self, addresses: list[str]) -> None:
        """plan.json with the stages' addresses, complete or not at all: the router may be reading it."""
        rest = iter(addresses)
        pipelines = tuple(
            pipeline.model_copy(
                update={"stages": tuple(stage.model_copy(update={"address": next(rest)}) for stage in pipeline.stages)}
            )
            for pipeline in self._plan.pipelines
        )
        plan = self._plan.model_copy(update={"pipelines": pipelines})
        path = self.directory / PLAN_FILE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(plan.model_dump_json(by_alias=True, indent=2), encoding="utf-8")
        temporary.replace(path)

    async def _keep(self, slot: _Slot, report: Callable[[str], None]) -> None:
        while True:
            await slot.process.wait()
            failure = slot.process.failure()
            if not slot.budget.spend(time.monotonic()):
                raise failure
            report(f"{failure}; starting it again")
            await slot.process.stop(0)
            slot.process = slot.make()
            await slot.process.start()
            try:
                await slot.process.event("ready", self._load_deadline)
            except ShoalError:
                # One that died again while it loaded costs the budget its next restart; one that hangs ends the run.
                if not slot.process.ended:
                    raise
            else:
                report(f"{slot.process.name} is ready again")

    async def _while_alive(self, work: Iterable[Awaitable[T]]) -> list[T]:
        working = asyncio.ensure_future(_all(work))
        dying = asyncio.ensure_future(_all(_death(slot.process) for slot in self._slots))
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                dying.result()
            return await working
        finally:
            working.cancel()
            dying.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)


def _names(plan: Plan) -> list[str]:
    """Of every stage, as the printed plan numbers them."""
    several = len(plan.pipelines) > 1
    return [
        f"pipeline {pipeline.index} stage {stage.index}" if several else f"stage {stage.index}"
        for pipeline in plan.pipelines
        for stage in pipeline.stages
    ]


async def _death(process: ManagedProcess) -> None:
    await process.wait()
    raise process.failure()


async def _all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order. The first failure ends the others and is raised as it is, not as a group."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
