"""The pipeline that is hit: a local run as `shoal run` makes it, with a relay on each of its links.

The run's plan.json names the stages' own addresses. The router is given a copy in which each stage is reached through
its relay, kept up to date while standbys take over and processes come back.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from bench.link import Link
from bench.relay import Relay
from bench.systems.local import local_commands, local_plan
from chaos.certificates import issue
from chaos.schedule import Blow, Event
from shoal.manifest import read_manifest
from shoal.plan.document import Plan, StagePlan
from shoal.resource import SpeculativeMode
from shoal.wire.codec import decode_description
from shoal.wire.messages import StageDescription
from shoal.wire.stage_pb2 import DescribeRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal.wire.tls import ROUTER, STAGE, TlsDirectory
from shoal.wire.transport import open_channel
from shoal_cli.local.launch import LocalCommands
from shoal_cli.local.pipeline import LocalPipeline
from shoal_cli.local.restarts import Restarts
from shoal_cli.local.stages import PLAN_FILE, Seat

STAGES, STREAMS, CONTEXT = 2, 8, 256
LOAD_SECONDS = 180.0
RECOVERY_SECONDS = 45
"""How long an answer waits for the pipeline before it ends with an error."""
_MIRROR_SECONDS = 0.01
_SLOW = Link(delay=0.05, jitter=0.01)


@dataclass(frozen=True, slots=True)
class _Commands:
    """The local run's command lines with TLS, and a router that sees the relays."""

    inner: LocalCommands
    plan: Path
    tls: dict[str, TlsDirectory]

    def stage(self, stage: StagePlan, listen: str) -> list[str]:
        return [*self.inner.stage(stage, listen), f"--tls-dir={self.tls[STAGE].path}"]

    def draft(self, listen: str) -> list[str] | None:
        return self.inner.draft(listen)

    def router(self, plan: Path, port: int | None = None, draft_address: str | None = None) -> list[str]:
        del plan
        return [*self.inner.router(self.plan, port, draft_address), f"--tls-dir={self.tls[ROUTER].path}"]


@dataclass(slots=True)
class System:
    """A run and its relays. `watching` is the local runtime at work, `said` what it reported."""

    local: LocalPipeline
    url: str
    tls: TlsDirectory
    relays: dict[str, Relay]
    watching: asyncio.Task[None]
    said: list[str] = field(default_factory=list)
    later: set[asyncio.Task[None]] = field(default_factory=set)

    def hit(self, event: Event) -> str:
        """Do it; returns what was done."""
        match event.blow:
            case Blow.RESTART_ROUTER:
                return self._signal("router", signal.SIGTERM)
            case Blow.KILL_ROUTER:
                return self._signal("router", signal.SIGKILL)
        serving = event.blow is not Blow.KILL_STANDBY
        # Only who is up: a run gives up, and should, on a process that dies again and again before it ever was.
        up = [seat for seat in self.local.stages if seat.ready and self.local.stages.serves(seat) == serving]
        if not up:
            return f"{event.blow}: nobody is up whom it could hit"
        seat = up[int(event.choice * len(up))]
        relay = self.relays[seat.stage.address]
        match event.blow:
            case Blow.KILL_STAGE | Blow.KILL_STANDBY:
                return self._signal(seat.name, signal.SIGKILL)
            case Blow.DRAIN_STAGE:
                return self._signal(seat.name, signal.SIGTERM)
            case Blow.STOP_STAGE:
                pid = self.local.pid_of(seat.name)
                said = self._signal(seat.name, signal.SIGSTOP)
                self._later(event.seconds, lambda: self._go_on(seat.name, pid))
                return f"{said} for {event.seconds} s"
            case Blow.STALL_LINK:
                relay.stall(event.seconds)
            case Blow.DELAY_LINK:
                relay.link = _SLOW
                self._later(event.seconds, lambda: setattr(relay, "link", Link()))
            case Blow.CUT_LINK:
                relay.cut()
                self._later(event.seconds, relay.mend)
            case Blow.CORRUPT_LINK:
                relay.corrupt()
            case Blow.FILL_DISK:
                self._fill_disk()
                self._later(event.seconds, self.free_disk)
                return f"no byte more on the disk for {event.seconds} s; {self._signal(seat.name, signal.SIGKILL)}"
        return f"{event.blow}: to {seat.name}{f', {event.seconds} s' if event.seconds else ''}"

    async def healed(self) -> None:
        """Wait until what was to be undone later is undone, and every process is back."""
        async with asyncio.timeout(LOAD_SECONDS):
            await asyncio.gather(*self.later)
            while not all(seat.ready for seat in self.local.stages):  # noqa: ASYNC110 - other processes load
                await asyncio.sleep(0.1)

    async def describe(self, seat: Seat) -> StageDescription:
        """What the stage says of itself, asked without a relay."""
        channel = open_channel(seat.stage.address, 1 << 20, self.tls)
        try:
            stub = StageStub(channel)  # type: ignore[no-untyped-call]
            return decode_description(await stub.Describe(DescribeRequest(), timeout=10.0))
        finally:
            with suppress(grpc.aio.AioRpcError):
                await channel.close(None)

    def _signal(self, name: str, number: signal.Signals) -> str:
        _send(self.local.pid_of(name), number)
        return f"{number.name} to {name}"

    def _fill_disk(self) -> None:
        """Nobody's files may grow: neither those of the processes nor the plan, which the runtime in here writes.

        A limit of the kernel's instead of a full file system, which would need rights that a test does not have. Every
        write fails as it would on a full disk, with another number; processes that start meanwhile inherit the limit.
        """
        self._let_files_grow(grow=False)

    def free_disk(self) -> None:
        """There is room again."""
        self._let_files_grow(grow=True)

    def _let_files_grow(self, *, grow: bool) -> None:
        for pid in (os.getpid(), *self.local.pids):
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if grow else 0, hard))

    def _go_on(self, name: str, pid: int | None) -> None:
        if pid == self.local.pid_of(name):
            _send(pid, signal.SIGCONT)

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            undo()

        task = asyncio.create_task(wait())
        self.later.add(task)
        task.add_done_callback(self.later.discard)


@asynccontextmanager
async def system(model: Path, folder: Path, clients: int) -> AsyncIterator[System]:
    """Started, with a standby for each stage; nothing is left behind."""
    tls = issue(folder / "tls")
    seen = folder / "seen-by-the-router.json"
    inner = local_commands(
        model,
        kind=LocalCommands,
        streams=STREAMS,
        max_context=CONTEXT,
        prefill_chunk=64,
        served_names=("chaos",),
        max_queue=4 * clients,
        exact=True,
        recovery_attempts=10,
        recovery_seconds=RECOVERY_SECONDS,
        speculative_mode=SpeculativeMode.AUTO,
        speculative_max_tokens=4,
    )
    plan = local_plan(read_manifest(model), STAGES, STAGES, streams=STREAMS, max_context=CONTEXT)
    relays: dict[str, Relay] = {}
    async with AsyncExitStack() as stack:
        mirroring = asyncio.create_task(_mirror(folder / PLAN_FILE, seen, relays, stack))
        try:
            async with LocalPipeline(
                plan,
                _Commands(inner, seen, tls),
                folder,
                LOAD_SECONDS,
                restarts=lambda: Restarts(longest_pause=1.0),
                tls=tls[ROUTER],
            ) as local:
                url, said = await local.start(), list[str]()
                watching = asyncio.create_task(local.watch(said.append))
                made = System(local, url, tls[ROUTER], relays, watching, said)
                try:
                    yield made
                finally:
                    made.free_disk()
                    for task in (watching, *made.later):
                        task.cancel()
                    await asyncio.gather(watching, *made.later, return_exceptions=True)
        finally:
            mirroring.cancel()
            await asyncio.gather(mirroring, return_exceptions=True)


async def _mirror(source: Path, target: Path, relays: dict[str, Relay], stack: AsyncExitStack) -> None:
    """Keep a copy of the plan in which every stage is reached through its relay."""
    last = b""
    while True:
        now = _content(source)
        if now != last:
            plan = Plan.model_validate_json(now)
            for stage in plan.everywhere:
                if stage.address not in relays:
                    relays[stage.address] = await stack.enter_async_context(Relay(stage.address))
            pipelines = tuple(
                pipeline.model_copy(
                    update={
                        "stages": tuple(
                            stage.model_copy(update={"address": relays[stage.address].address})
                            for stage in pipeline.stages
                        )
                    }
                )
                for pipeline in plan.pipelines
            )
            partial = target.with_suffix(".partial")
            with suppress(OSError):  # the disk is full right now: at the next look
                partial.write_text(plan.model_copy(update={"pipelines": pipelines}).model_dump_json(by_alias=True))
                partial.replace(target)
                last = now
        await asyncio.sleep(_MIRROR_SECONDS)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
