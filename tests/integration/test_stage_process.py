"""`python -m shoal_stage serve` as a process: its events, its signals, its exit codes, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.models import smollm2
from shoal.manifest import MANIFEST_FILE, read_manifest
from shoal.wire.codec import decode_description
from shoal.wire.messages import StageState
from shoal.wire.stage_pb2 import DescribeRequest
from shoal.wire.stage_pb2_grpc import StageStub

DEADLINE = 90.0


class Process:
    """A stage process: its events as they come, its exit code, its last words."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE)
        assert line, await self.last_words()
        found: dict[str, Any] = json.loads(line)
        return found

    async def last_words(self) -> str:
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), DEADLINE)).decode()

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), DEADLINE)


@asynccontextmanager
async def serve(*options: str, launcher: tuple[str, ...] = ("-m", "shoal_stage", "serve")) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        *launcher,
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2 compiled into the user's cache; these tests load its first two blocks only."""
    return smollm2().directory


@pytest.fixture
def common(model: Path) -> tuple[str, ...]:
    return (f"--model={model}", "--blocks=0:2", "--streams=2", "--max-context=64", "--threads=1")


async def health(address: str) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_draft_process_listens_loads_serves_and_stops(model: Path, number: signal.Signals) -> None:
    options = (f"--model={model}", "--streams=1", "--max-context=64")
    async with serve(*options, launcher=("-m", "shoal_stage", "draft")) as draft:
        listening = await draft.event()
        ready = await draft.event()
        assert (ready["event"], ready["address"]) == ("ready", listening["address"])
        assert await health(ready["address"]) == "SERVING"
        draft.process.send_signal(number)
        assert await draft.exit_code() == 0
        assert "Traceback" not in await draft.last_words()


async def test_a_draft_process_without_a_model_is_one_line(tmp_path: Path) -> None:
    async with serve(f"--model={tmp_path}", launcher=("-m", "shoal_stage", "draft")) as draft:
        assert await draft.exit_code() == 2
        assert "is not a model directory" in (await draft.last_words()).splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("engine", ["paged", "stateful"])
async def test_a_stage_listens_loads_serves_and_stops(
    common: tuple[str, ...], engine: str, number: signal.Signals
) -> None:
    async with serve(*common, f"--engine={engine}") as stage:
        listening = await stage.event()
        assert listening["event"] == "listening"
        assert await health(listening["address"]) in ("NOT_SERVING", "SERVING")
        ready = await stage.event()
        assert (ready["event"], ready["address"]) == ("ready", listening["address"])
        assert await health(ready["address"]) == "SERVING"
        async with grpc.aio.insecure_channel(ready["address"]) as channel:
            said = decode_description(await StageStub(channel).Describe(DescribeRequest(), timeout=DEADLINE))
        assert (said.state, said.engine, said.execution_devices) == (StageState.READY, engine, ("CPU",))
        stage.process.send_signal(number)
        assert await stage.exit_code() == 0
        assert "Traceback" not in await stage.last_words()


async def test_a_stage_that_is_told_to_stop_while_it_loads_stops_at_once(model: Path) -> None:
    async with serve(f"--model={model}", "--blocks=0:32", "--threads=1") as stage:
        await stage.event()
        stage.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            assert await stage.exit_code() == 0
        assert stage.process.stdout is not None
        assert await stage.process.stdout.read() == b""


async def test_a_port_in_use_is_one_line_and_exit_code_5(common: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serve(*common, f"--listen=127.0.0.1:{port}") as stage:
            assert await stage.exit_code() == 5
            words = await stage.last_words()
    assert f"error: port {port} on 127.0.0.1 is in use" in words.splitlines()[-1]
    assert "Traceback" not in words


async def test_a_block_whose_bytes_changed_is_refused(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model"
    (broken / "blocks").mkdir(parents=True)
    manifest = read_manifest(model)
    (broken / MANIFEST_FILE).write_bytes(manifest.canonical_json())
    for entry in manifest.files_of(0, 2):
        (broken / entry.path).write_bytes((model / entry.path).read_bytes())
    damaged = broken / manifest.blocks[1].bin.path
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    async with serve(f"--model={broken}", "--blocks=0:2") as stage:
        assert (await stage.event())["event"] == "listening"
        assert await stage.exit_code() == 4
        last = (await stage.last_words()).splitlines()[-1]
    assert last.startswith("error: ")
    assert str(damaged) in last


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--blocks=0:99"], 2, "blocks 0:99 do not exist"),
        (["--blocks=0:2", "--device=GPU"], 5, "no device GPU"),
        (["--blocks=0:2", "--device=NPU"], 2, "no engine of this version runs on the NPU"),
        (["--blocks=0:2", "--surprise"], 2, "--surprise"),
    ],
)
async def test_what_cannot_be_served_is_one_line(model: Path, options: list[str], code: int, words: str) -> None:
    async with serve(f"--model={model}", *options) as stage:
        assert await stage.exit_code() == code
        said = await stage.last_words()
    assert words in said.splitlines()[-1]
    assert "Traceback" not in said


async def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    async with serve(f"--model={tmp_path}", "--blocks=0:2") as stage:
        assert await stage.exit_code() == 2
        assert "not a model directory" in (await stage.last_words()).splitlines()[-1]


async def test_a_stage_dies_with_the_process_that_started_it(common: tuple[str, ...]) -> None:
    launcher = textwrap.dedent("""
        import subprocess, sys
        # Its stdout breaks with this process, as that of every program that waits for the stage's events.
        command = [sys.executable, "-P", "-m", "shoal_stage", "serve", *sys.argv[1:]]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        print(f'{{"event": "child", "pid": {child.pid}}}', flush=True)
        for line in child.stdout:
            print(line, end="", flush=True)
    """)
    async with serve(*common, "--die-with-parent", launcher=("-c", launcher)) as parent:
        pid = (await parent.event())["pid"]
        for _ in range(2):
            address = (await parent.event())["address"]
        pidfd = os.pidfd_open(pid)
        try:
            parent.process.kill()
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(pidfd, ended.set)
            await asyncio.wait_for(ended.wait(), DEADLINE)
            asyncio.get_running_loop().remove_reader(pidfd)
        finally:
            os.close(pidfd)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(tuple(address.split(":")), timeout=5)


async def test_a_damaged_cache_is_rebuilt(common: tuple[str, ...], tmp_path: Path) -> None:
    """OpenVINO's cache may be cut short by a power cut: it must cost a compilation, not the stage."""
    for _ in range(2):
        async with serve(*common, "--engine=stateful", f"--cache-dir={tmp_path}") as stage:
            await stage.event()
            assert (await stage.event())["event"] == "ready"
            stage.process.terminate()
            assert await stage.exit_code() == 0
        cut_in_half(tmp_path)


def cut_in_half(cache: Path) -> None:
    blobs = list(cache.glob("*.blob"))
    assert blobs
    for blob in blobs:
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[: blob.stat().st_size // 2])


async def test_case_49_loading_openvino_asks_no_name_server_and_forks_nothing() -> None:
    probe = textwrap.dedent("""
        import sys
        def hook(event, arguments):
            if event in ("os.fork", "os.posix_spawn", "subprocess.Popen", "socket.getaddrinfo", "socket.connect"):
                print(event, arguments, flush=True)
        sys.addaudithook(hook)
        import shoal_stage.engine.open
    """)
    async with serve(launcher=("-c", probe)) as process:
        assert process.process.stdout is not None
        assert await asyncio.wait_for(process.process.stdout.read(), DEADLINE) == b""
        assert await process.exit_code() == 0
