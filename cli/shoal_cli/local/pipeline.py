"""All processes of one local run: the stages of every pipeline and their standbys, the draft process, the router.

    start    stages and draft process at once; as soon as they listen (they load on) plan.json gets the stages'
             addresses, and the router starts
    watch    a process that ends, or a stage that falls silent, is started again under its old address; a standby takes
             a stage's place at once. Only a process that does not come up at all, again and again, ends the run
    stop     the router first, so that no request meets a missing stage; then the stages

Whatever happens in between, `stop` leaves no process. That also holds when shoal itself is killed: every process is
told to die with its parent.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from shoal.errors import ShoalError
from shoal.parent import STARTER
from shoal.plan.document import Plan, StagePlan
from shoal.wire.tls import TlsDirectory
from shoal_cli.local.probe import fall_silent
from shoal_cli.local.process import ManagedProcess
from shoal_cli.local.restarts import Restarts
from shoal_cli.local.stages import Seat, Stages

T = TypeVar("T")
Report = Callable[[str], None]

LISTEN_DEADLINE = 60.0
"""Seconds until a process must have its port: it only imports its libraries before that."""

PLAN_SECONDS = 0.2
"""How often plan.json is tried again that could not be written."""

STOP_GRACE = 8.0
"""Seconds that the router, and then the stages, get to end by themselves; the router lets answers go on for a while."""


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


@dataclass(slots=True, eq=False)
class _Slot:
    """The place of one process: the process that holds it now, and what it takes to fill it anew.

    `seat` is what it holds of the model; None for router and draft process.
    """

    process: ManagedProcess
    make: Callable[[], ManagedProcess]
    restarts: Restarts
    seat: Seat | None = None


class LocalPipeline:
    """Owns the processes from `start` to `stop`. Use it as an async context manager.

    `restarts` makes the rule by which each process is started again; `tls` is what this machine's probes show to stages
    that ask for certificates.
    """

    def __init__(
        self,
        plan: Plan,
        commands: Commands,
        directory: Path,
        load_deadline: float,
        *,
        restarts: Callable[[], Restarts] = Restarts,
        tls: TlsDirectory | None = None,
    ) -> None:
        self.directory = directory
        self.stages = Stages(plan, directory)
        self._commands = commands
        self._load_deadline = load_deadline
        self._restarts = restarts
        self._tls = tls
        self._slots: list[_Slot] = []
        # With their starter's id the processes can tell that it ended before they could ask the kernel to be told.
        self._env = {**os.environ, STARTER: str(os.getpid())}

    async def __aenter__(self) -> LocalPipeline:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids: stages, standbys, draft process, router; those that were never started are left out."""
        return [slot.process.pid for slot in self._slots if slot.process.pid is not None]

    def pid_of(self, name: str) -> int | None:
        """The process id of `router`, `draft` or a seat's name; None while it does not live."""
        named = (slot.process for slot in self._slots if slot.process.name == name and not slot.process.ended)
        return next((process.pid for process in named), None)

    async def start(self) -> str:
        """Start everything and wait until it is ready; returns the router's URL.

        Raises the first failure: a process that died (of the kind its exit code means), or one that took too long.
        """
        for seat in self.stages:
            self._add(seat.name, self._commands.stage(seat.stage, "127.0.0.1:0"), seat)
        draft = self._commands.draft("127.0.0.1:0")
        if draft is not None:
            self._add("draft", draft)
        await _all(slot.process.start() for slot in self._slots)
        listening = await self._while_alive(slot.process.event("listening", LISTEN_DEADLINE) for slot in self._slots)
        draft_address = None
        for slot, event in zip(self._slots, listening, strict=True):
            address = str(event["address"])
            if slot.seat is not None:
                slot.seat.stage = slot.seat.stage.model_copy(update={"address": address})
                slot.make = self._maker(slot.seat.name, self._commands.stage(slot.seat.stage, address))
            elif (again := self._commands.draft(address)) is not None:
                draft_address = address
                slot.make = self._maker("draft", again)
        self.stages.write()

        plan = self.stages.path
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
        for slot in self._slots:
            self._is_ready(slot)
        return url

    async def watch(self, report: Report) -> None:
        """Look after every process until one cannot be brought up again: then raise its failure. Never returns."""
        await _all([*(self._keep(slot, report) for slot in self._slots), self._keep_plan(report)])

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

    def _add(self, name: str, argv: list[str], seat: Seat | None = None) -> _Slot:
        make = self._maker(name, argv)
        slot = _Slot(make(), make, self._restarts(), seat)
        self._slots.append(slot)
        return slot

    def _is_ready(self, slot: _Slot) -> None:
        slot.restarts.ready(time.monotonic())
        if slot.seat is not None:
            self.stages.back(slot.seat)

    async def _keep_plan(self, report: Report) -> None:
        """Write plan.json as soon as it can be when it could not: the disk was full."""
        while True:
            await asyncio.sleep(PLAN_SECONDS)
            if (problem := self.stages.unwritten) is not None:
                report(f"{problem}; trying again")
                while self.stages.unwritten is not None:
                    await asyncio.sleep(PLAN_SECONDS)
                    self.stages.settle()
                report(f"{self.stages.path} is written")

    async def _keep(self, slot: _Slot, report: Report) -> None:
        while True:
            if slot.seat is not None and slot.seat.ready:
                await self._until_useless(slot, slot.seat, report)
            await slot.process.wait()
            failure = slot.process.failure()
            instead = self._hand_over(slot)
            pause = slot.restarts.pause(time.monotonic(), replaced=self._is_replaced(slot))
            if pause is None:
                raise failure
            when = f" in {pause:g} s" if pause else ""
            report(f"{failure}; {instead}starting it again{when}")
            await slot.process.stop(0)
            await asyncio.sleep(pause)
            slot.process = slot.make()
            await slot.process.start()
            try:
                await slot.process.event("ready", self._load_deadline)
            except ShoalError:
                # One that died again while it loaded has used up an attempt; one that hangs ends the run.
                if not slot.process.ended:
                    raise
            else:
                self._is_ready(slot)
                report(f"{slot.process.name} is ready again{' and stands by' if self._is_replaced(slot) else ''}")

    async def _until_useless(self, slot: _Slot, seat: Seat, report: Report) -> None:
        """Return when a stage has ended, is about to, or has fallen silent; then a standby has its place already."""
        ending = asyncio.ensure_future(slot.process.said("draining"))
        silent = asyncio.ensure_future(fall_silent(seat.stage.address, self._tls))
        try:
            await asyncio.wait({ending, silent}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                if ending.result():
                    report(f"{seat.name} was told to stop; {self._hand_over(slot)}waiting for its end")
            else:
                silent.result()
                report(f"{seat.name} has fallen silent; {self._hand_over(slot)}ending it")
                slot.process.kill()
        finally:
            for task in (ending, silent):
                task.cancel()
            await asyncio.gather(ending, silent, return_exceptions=True)

    def _is_replaced(self, slot: _Slot) -> bool:
        """Whether another process serves what this one holds."""
        return slot.seat is not None and not self.stages.serves(slot.seat)

    def _hand_over(self, slot: _Slot) -> str:
        """Let a standby take the place of a stage that is gone; returns what to say about it."""
        successor = None if slot.seat is None else self.stages.lost(slot.seat)
        return "" if successor is None else f"{successor.name} takes its place; "

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
