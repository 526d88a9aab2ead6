"""Managed processes and a local pipeline of tiny scripts: events, deaths, restarts, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.errors import IntegrityError, ResourceError, StageError
from shoal.plan.document import Device, MemorySum, PipelinePlan, Plan, StagePlan, Standby
from shoal_cli.local.logfile import keep_short
from shoal_cli.local.pipeline import LocalPipeline
from shoal_cli.local.process import ManagedProcess
from shoal_cli.local.restarts import ATTEMPTS, Restarts

WAIT = "import signal; signal.pause()"
READY = 'print(\'{"event": "ready"}\', flush=True)\n' + WAIT


def say(**event: str) -> str:
    return f"print({json.dumps(json.dumps(event))}, flush=True)\n"


def script(*parts: str) -> list[str]:
    return [sys.executable, "-S", "-c", "".join(parts)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is dead, it only has not been collected yet.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def died(pid: int) -> None:
    """Wait until the process is gone, by the kernel's own word for it."""
    gone = asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    asyncio.get_running_loop().add_reader(descriptor, gone.set)
    await gone.wait()
    asyncio.get_running_loop().remove_reader(descriptor)
    os.close(descriptor)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[object]:
    made: list[ManagedProcess] = []

    async def start(*parts: str, name: str = "stage 0", folder: Path | None = None) -> ManagedProcess:
        parts = parts if folder is None else (f"import os; os.chdir({str(folder)!r})\n", *parts)
        made.append(ManagedProcess(name, script(*parts), tmp_path / "log", dict(os.environ)))
        await made[-1].start()
        return made[-1]

    yield start
    await asyncio.gather(*(one.stop(0) for one in made))


async def test_events_are_read_and_everything_else_goes_to_the_log(process, tmp_path: Path) -> None:
    child = await process(
        "print('hello', flush=True)\n", say(event="listening", address="127.0.0.1:1"), say(event="ready"), WAIT
    )
    assert (await child.event("listening", 10))["address"] == "127.0.0.1:1"
    await child.event("ready", 10)
    assert "hello" in (tmp_path / "log").read_text()


async def test_a_log_does_not_grow_without_end(process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_cli.local.process.LOG_SECONDS", 0.01)
    monkeypatch.setattr("shoal_cli.local.process.keep_short", lambda log: keep_short(log, longest=10_000))
    child = await process(
        "import os\n",
        "while not os.path.exists('log.1'):\n    os.write(2, b'words ' * 100 + b'\\n')\n",
        say(event="ready"),
        WAIT,
        folder=tmp_path,
    )
    await child.event("ready", 30)
    assert "words words" in (tmp_path / "log.1").read_text()


async def test_a_death_before_the_event_is_reported_with_its_last_words(process) -> None:
    child = await process("import sys; sys.stderr.write('shoal: error: the model is broken\\n'); sys.exit(4)")
    with pytest.raises(IntegrityError, match=r"stage 0 ended with exit code 4: the model is broken \(log: "):
        await child.event("ready", 10)


async def test_a_kill_is_reported_by_the_signal_s_name(process) -> None:
    child = await process(say(event="listening"), WAIT)
    await child.event("listening", 10)
    child.kill()
    with pytest.raises(StageError, match="was killed by SIGKILL"):
        await child.event("ready", 10)


async def test_case_16_an_event_that_does_not_come_is_an_error_at_its_deadline(process) -> None:
    child = await process(WAIT)
    with pytest.raises(StageError, match="stage 0 was not ready after 0 s"):
        await child.event("ready", 0.05)


async def test_stop_kills_what_ignores_sigterm_and_what_it_started(process) -> None:
    child = await process(
        "import os, signal, subprocess, sys\n",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        f"grandchild = subprocess.Popen({script(WAIT)!r})\n",
        'print(\'{"event": "started", "pid": %d}\' % grandchild.pid, flush=True)\n',
        WAIT,
    )
    grandchild = (await child.event("started", 10))["pid"]
    await child.stop(grace=0.1)
    assert child.ended
    async with asyncio.timeout(10):
        await died(grandchild)


async def test_a_grandchild_that_holds_stdout_does_not_keep_the_end_from_being_seen(process) -> None:
    child = await process(
        "import subprocess\n",
        f"grandchild = subprocess.Popen({script(WAIT)!r})\n",
        'print(\'{"event": "started", "pid": %d}\' % grandchild.pid, flush=True)\n',
    )
    await child.event("started", 10)
    async with asyncio.timeout(10):
        await child.wait()


async def test_output_without_line_ends_and_binary_output_do_no_harm(process) -> None:
    child = await process(
        "import sys\n",
        "sys.stdout.buffer.write(b'x' * 300_000 + b'\\n\\xff\\xfe{\\n{\"event\": 3}\\n')\n",
        say(event="ready"),
        WAIT,
    )
    await child.event("ready", 10)


async def test_half_a_line_of_output_does_not_run_into_an_error(process) -> None:
    half = "import sys\nsys.stdout.write('half a line')\nsys.stdout.flush()\n"
    child = await process(say(event="ready"), half, "sys.stderr.write('shoal: error: no luck\\n')\nraise SystemExit(1)")
    await child.wait()
    assert "exit code 1: no luck" in str(child.failure())
    assert "half a line" in child.log.read_text()


async def test_a_program_that_does_not_exist_is_one_clear_error(tmp_path: Path) -> None:
    child = ManagedProcess("router", ["/nowhere/python"], tmp_path / "log", {})
    with pytest.raises(ResourceError, match="router could not be started: /nowhere/python: No such file"):
        await child.start()
    await child.stop(0)


SUM = MemorySum(weights=1, load_peak=0, kv=1, runtime=1)


def plan(stages: int, standbys: int = 0) -> Plan:
    made = tuple(
        StagePlan(index=n, node=f"local-{n}", device=Device.CPU, block_start=n, block_end=n + 1, memory=SUM)
        for n in range(stages)
    )
    extra = tuple(
        Standby(pipeline=0, stage=made[n].model_copy(update={"node": f"local-{stages + n}"})) for n in range(standbys)
    )
    return Plan(pipelines=(PipelinePlan(index=0, stages=made),), standbys=extra)


class Scripts:
    """Command lines of scripts that behave like stages, a draft process and a router."""

    def __init__(self, stages: dict[int, str] | None = None, router: str = "", draft: str | None = None) -> None:
        self.listens: list[str] = []
        self.draft_addresses: list[str | None] = []
        self._draft = draft
        self._stages = stages or {}
        self._router = router or say(event="listening", url="http://127.0.0.1:1") + READY

    def stage(self, stage: StagePlan, listen: str) -> list[str]:
        self.listens.append(listen)
        return script(
            say(event="listening", address=f"127.0.0.1:{9000 + int(stage.node[6:])}"),
            self._stages.get(stage.index, READY),
        )

    def draft(self, listen: str) -> list[str] | None:
        return None if self._draft is None else script(say(event="listening", address="127.0.0.1:9100"), self._draft)

    def router(self, plan: Path, port: int | None = None, draft_address: str | None = None) -> list[str]:
        self.draft_addresses.append(draft_address)
        return script(self._router)


async def test_start_writes_the_plan_with_the_addresses_and_stop_leaves_no_process(tmp_path: Path) -> None:
    async with LocalPipeline(plan(3), Scripts(), tmp_path, load_deadline=10) as pipeline:
        assert await pipeline.start() == "http://127.0.0.1:1"
        written = Plan.model_validate_json((tmp_path / "plan.json").read_bytes())
        pids = pipeline.pids
        assert len(pids) == 4
        assert all(map(alive, pids))
    assert [stage.address for stage in written.pipelines[0].stages] == [f"127.0.0.1:{9000 + n}" for n in range(3)]
    assert not any(map(alive, pids))


async def test_a_draft_process_starts_with_the_stages_and_the_router_is_told_where_it_is(tmp_path: Path) -> None:
    scripts = Scripts(draft=READY)
    async with LocalPipeline(plan(2), scripts, tmp_path, load_deadline=10) as pipeline:
        await pipeline.start()
        pids = pipeline.pids
        assert len(pids) == 4
        assert set(scripts.draft_addresses) == {"127.0.0.1:9100"}
        written = Plan.model_validate_json((tmp_path / "plan.json").read_bytes())
    assert [stage.address for stage in written.pipelines[0].stages] == ["127.0.0.1:9000", "127.0.0.1:9001"]
    assert not any(map(alive, pids))


async def test_a_stage_that_dies_while_another_still_loads_ends_the_start_at_once(tmp_path: Path) -> None:
    scripts = Scripts(stages={0: "raise SystemExit('shoal: error: no luck')", 1: WAIT})
    async with asyncio.timeout(30), LocalPipeline(plan(2), scripts, tmp_path, load_deadline=600) as pipeline:
        with pytest.raises(StageError, match="stage 0 ended with exit code 1: no luck"):
            await pipeline.start()
        pids = pipeline.pids
    assert not any(map(alive, pids))


async def test_a_router_that_dies_while_the_stages_load_ends_the_start(tmp_path: Path) -> None:
    scripts = Scripts(stages={0: WAIT}, router="raise SystemExit(5)")
    async with asyncio.timeout(30), LocalPipeline(plan(1), scripts, tmp_path, load_deadline=600) as pipeline:
        with pytest.raises(ResourceError, match="router ended with exit code 5"):
            await pipeline.start()


async def test_a_dead_stage_is_started_again_under_its_old_address(tmp_path: Path) -> None:
    scripts, reports = Scripts(), asyncio.Queue[str]()
    async with LocalPipeline(plan(2), scripts, tmp_path, load_deadline=10) as pipeline:
        await pipeline.start()
        watching = asyncio.create_task(pipeline.watch(reports.put_nowait))
        os.kill(pipeline.pids[1], 9)
        async with asyncio.timeout(20):
            assert "stage 1 was killed by SIGKILL" in await reports.get()
            assert await reports.get() == "stage 1 is ready again"
        assert scripts.listens[-1] == "127.0.0.1:9001"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def at_once() -> Restarts:
    return Restarts(standby_pause=0.0)


def addresses(folder: Path) -> list[str]:
    written = Plan.model_validate_json((folder / "plan.json").read_bytes())
    return [stage.address for stage in written.pipelines[0].stages]


async def test_a_standby_takes_the_place_of_a_dead_stage_which_then_stands_by(tmp_path: Path) -> None:
    reports = asyncio.Queue[str]()
    async with (
        asyncio.timeout(60),
        LocalPipeline(plan(2, 1), Scripts(), tmp_path, load_deadline=10, restarts=at_once) as pipeline,
    ):
        await pipeline.start()
        assert addresses(tmp_path) == ["127.0.0.1:9000", "127.0.0.1:9001"]
        watching = asyncio.create_task(pipeline.watch(reports.put_nowait))
        os.kill(pipeline.pid_of("stage 0"), 9)
        said = await reports.get()
        assert said.startswith("stage 0 was killed by SIGKILL")
        assert said.endswith("; standby 0 takes its place; starting it again")
        assert addresses(tmp_path) == ["127.0.0.1:9002", "127.0.0.1:9001"]
        assert await reports.get() == "stage 0 is ready again and stands by"
        os.kill(pipeline.pid_of("standby 0"), 9)
        assert "stage 0 takes its place" in await reports.get()
        assert addresses(tmp_path) == ["127.0.0.1:9000", "127.0.0.1:9001"]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_full_disk_delays_a_standby_and_ends_nothing(tmp_path: Path, full_disk) -> None:
    """No log line and no plan can be written while a stage dies: its events still count, and the plan follows."""
    reports = asyncio.Queue[str]()
    async with (
        asyncio.timeout(60),
        LocalPipeline(plan(2, 1), Scripts(), tmp_path, load_deadline=10, restarts=at_once) as pipeline,
    ):
        await pipeline.start()
        watching = asyncio.create_task(pipeline.watch(reports.put_nowait))
        with full_disk():
            os.kill(pipeline.pid_of("stage 0"), 9)
            assert "standby 0 takes its place" in await reports.get()
            said = [await reports.get(), await reports.get()]
            assert "stage 0 is ready again and stands by" in said
            assert any("plan.json cannot be written: File too large; trying again" in line for line in said)
            assert addresses(tmp_path) == ["127.0.0.1:9000", "127.0.0.1:9001"], "the last plan is still whole"
        assert (await reports.get()).endswith("plan.json is written")
        assert addresses(tmp_path) == ["127.0.0.1:9002", "127.0.0.1:9001"]
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.fixture
def full_disk():
    @contextmanager
    def full() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full


async def test_a_stage_that_says_it_stops_is_replaced_before_it_ends(tmp_path: Path) -> None:
    reports = asyncio.Queue[str]()
    stops_late = (
        "import signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: {say(event='draining').strip()})\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        f"{say(event='ready')}"
        "while True: signal.pause()"
    )
    scripts = Scripts(stages={0: stops_late})
    async with (
        asyncio.timeout(60),
        LocalPipeline(plan(1, 1), scripts, tmp_path, load_deadline=10, restarts=at_once) as pipeline,
    ):
        await pipeline.start()
        watching = asyncio.create_task(pipeline.watch(reports.put_nowait))
        pid = pipeline.pid_of("stage 0")
        os.kill(pid, signal.SIGTERM)
        said = await reports.get()
        assert said == "stage 0 was told to stop; standby 0 takes its place; waiting for its end"
        assert addresses(tmp_path) == ["127.0.0.1:9001"]
        assert alive(pid)
        os.kill(pid, signal.SIGUSR1)
        assert "stage 0 ended with exit code 0" in await reports.get()
        assert await reports.get() == "stage 0 is ready again and stands by"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        pipeline.kill()


async def test_a_stage_that_dies_again_while_it_loads_has_the_same_budget(tmp_path: Path) -> None:
    once = tmp_path / "once"
    second_time_dies = (
        f"import pathlib\nonce = pathlib.Path({str(once)!r})\nif once.exists(): raise SystemExit(6)\nonce.touch()\n"
    )
    reports = asyncio.Queue[str]()
    scripts = Scripts(stages={0: second_time_dies + READY})
    async with asyncio.timeout(60), LocalPipeline(plan(1), scripts, tmp_path, load_deadline=10) as pipeline:
        await pipeline.start()
        watching = asyncio.create_task(pipeline.watch(reports.put_nowait))
        os.kill(pipeline.pids[0], 9)
        with pytest.raises(StageError, match="stage 0 ended with exit code 6"):
            await watching
        said = [reports.get_nowait() for _ in range(reports.qsize())]
    assert len(said) == ATTEMPTS
    assert "was killed by SIGKILL" in said[0]
    assert all("ended with exit code 6" in line for line in said[1:])


async def test_work_is_given_up_when_a_process_dies(tmp_path: Path) -> None:
    async with asyncio.timeout(30), LocalPipeline(plan(1), Scripts(), tmp_path, load_deadline=10) as pipeline:
        await pipeline.start()
        work = asyncio.create_task(pipeline.while_alive(asyncio.Event().wait()))
        os.kill(pipeline.pids[0], 9)
        with pytest.raises(StageError, match="stage 0 was killed by SIGKILL"):
            await work
