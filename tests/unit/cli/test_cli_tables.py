"""Tables, command lines, questions and ports: what is shown and what is started."""

from __future__ import annotations

import io
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ResourceError, UsageError
from shoal.plan.document import Device, MemorySum, PipelinePlan, StagePlan
from shoal.resource import SpeculativeMode
from shoal_cli.asking import Question
from shoal_cli.local.launch import Engine, LocalCommands, threads_for
from shoal_cli.local.machine import this_machine
from shoal_cli.ports import check_port
from shoal_cli.tables import plan_table, timing_tables


def stage(index: int, start: int, end: int) -> StagePlan:
    memory = MemorySum(weights=3 * 2**20, load_peak=2**20, kv=2**21, runtime=2**28)
    return StagePlan(
        index=index,
        node=f"local-{index}",
        device=Device.CPU,
        block_start=start,
        block_end=end,
        memory=memory,
        step_ms=2.5,
    )


def printed(table: object) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


def test_the_plan_shows_every_term_of_the_sum() -> None:
    text = printed(plan_table(PipelinePlan(index=0, stages=(stage(0, 0, 16), stage(1, 16, 32))), 30, "plan"))
    row = next(line for line in text.splitlines() if "layers 15-29" in line)
    for cell in ("local-1", "CPU", "3.0 MiB", "+1.0 MiB", "2.0 MiB", "256 MiB", "261 MiB", "2.5"):
        assert cell in row


def test_timings_are_the_difference_of_two_statuses_per_step() -> None:
    (table,) = timing_tables(status((0, 1, 10, 5000, 1000, 0, 0)), status((0, 1, 30, 65000, 21000, 4000, 200)))
    lines = printed(table).splitlines()
    assert lines[0].strip() == "per step, mean of 20 steps"
    assert lines[-1].split() == ["0", "3.00", "ms", "1.00", "ms", "0.20", "ms", "0.01", "ms", "75%"]


def test_without_steps_there_is_nothing_to_show() -> None:
    assert timing_tables(status((0, 1, 3, 1, 1, 1, 1)), status((0, 1, 3, 1, 1, 1, 1))) == []


def test_of_several_pipelines_those_are_shown_that_worked_and_one_that_was_opened_anew_counts_from_nothing() -> None:
    idle = (0, 1, 5, 9000, 0, 0, 0)
    before = status(idle, (1, 7, 900, 999000, 0, 0, 0))
    after = status(idle, (1, 8, 10, 20000, 0, 0, 0), (2, 1, 10, 30000, 0, 0, 0))
    texts = [printed(table) for table in timing_tables(before, after)]
    assert [text.splitlines()[0].strip() for text in texts] == [
        "pipeline 1, per step, mean of 10 steps",
        "pipeline 2, per step, mean of 10 steps",
    ]
    assert ["2.00 ms" in texts[0], "3.00 ms" in texts[1]] == [True, True]


def status(*pipelines: tuple[int, ...]) -> dict[str, object]:
    """Of pipelines of one stage: index, epoch, steps, and the sums of compute, idle, queue and send in microseconds."""
    names = ("stage", "compute_us", "idle_us", "queue_us", "send_us")
    return {
        "pipelines": [
            {"index": index, "epoch": epoch, "steps": steps, "timings": [dict(zip(names, (0, *sums), strict=True))]}
            for index, epoch, steps, *sums in pipelines
        ]
    }


COMMANDS = LocalCommands(
    model=Path("/models/m"),
    openvino_cache=Path("/cache"),
    host="127.0.0.1",
    port=8000,
    served_names=("a", "b"),
    streams=4,
    max_context=2048,
    prefill_chunk=256,
    max_queue=64,
    threads=1,
    exact=True,
    prefix_cache=False,
    recovery_attempts=2,
    recovery_seconds=60,
    speculative_mode=SpeculativeMode.FIXED,
    speculative_max_tokens=5,
    draft_model=Path("/models/d"),
    engine=Engine.STATEFUL,
)


def test_a_stage_s_command_line() -> None:
    argv = COMMANDS.stage(stage(1, 16, 32), "127.0.0.1:0")
    assert argv[:5] == [sys.executable, "-P", "-m", "shoal_stage", "serve"]
    assert set(argv[5:]) == {
        "--model=/models/m",
        "--blocks=16:32",
        "--device=CPU",
        "--listen=127.0.0.1:0",
        "--streams=4",
        "--max-context=2048",
        "--threads=1",
        "--cache-dir=/cache",
        "--engine=stateful",
        "--exact",
        "--die-with-parent",
    }


def test_the_draft_process_s_command_line() -> None:
    argv = COMMANDS.draft("127.0.0.1:0")
    assert argv is not None
    assert argv[:5] == [sys.executable, "-P", "-m", "shoal_stage", "draft"]
    assert set(argv[5:]) == {
        "--model=/models/d",
        "--listen=127.0.0.1:0",
        "--streams=4",
        "--max-context=2048",
        "--die-with-parent",
    }
    assert replace(COMMANDS, draft_model=None).draft("127.0.0.1:0") is None
    router = COMMANDS.router(Path("/run/plan.json"), draft_address="127.0.0.1:9")
    assert "--draft-address=127.0.0.1:9" in router


def test_the_router_s_command_line() -> None:
    argv = COMMANDS.router(Path("/run/plan.json"))
    assert argv[:4] == [sys.executable, "-P", "-m", "shoal_router"]
    assert set(argv[4:]) == {
        "--plan=/run/plan.json",
        "--model=/models/m",
        "--listen=127.0.0.1:8000",
        "--prefill-chunk=256",
        "--max-queue=64",
        "--no-prefix-cache",
        "--speculative-mode=Fixed",
        "--speculative-max-tokens=5",
        "--recovery-attempts=2",
        "--recovery-seconds=60",
        "--grace-seconds=2.0",
        "--served-name=a",
        "--served-name=b",
        "--die-with-parent",
    }
    assert "--listen=127.0.0.1:41000" in COMMANDS.router(Path("/run/plan.json"), port=41000)
    assert [a for a in argv if a.startswith("--served-name")] == ["--served-name=a", "--served-name=b"]


@pytest.mark.parametrize(("cores", "stages", "threads"), [(8, 2, 4), (8, 3, 2), (2, 3, 1), (1, 1, 1)])
def test_stages_share_the_cores(cores: int, stages: int, threads: int) -> None:
    assert threads_for(cores, stages) == threads


def test_this_machine_has_memory_cores_and_a_cpu() -> None:
    machine = this_machine()
    assert 0 < machine.memory_free <= machine.memory_total
    assert machine.cores >= 1
    assert Device.CPU in machine.devices


def test_a_model_without_chat_template_gets_a_completion() -> None:
    chat = Question("hi", "m", 5, 0.0, chat=True)
    plain = Question("hi", "m", 5, 0.0, chat=False)
    assert chat.path == "/v1/chat/completions"
    assert chat.body["messages"] == [{"role": "user", "content": "hi"}]
    assert plain.path == "/v1/completions"
    assert (plain.body["prompt"], plain.body["max_tokens"]) == ("hi", 5)


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"port {port} on 127.0.0.1 is in use.*--port"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="not an address of this machine"):
        check_port("192.0.2.1", 8000)
