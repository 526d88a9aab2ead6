"""`shoal run` on the real model: the same answer from every cut, and a pipeline that is looked after."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import httpx
import psutil
import pytest

PROMPT = "List three colours."


def answer_of(output: str) -> str:
    return re.search(rf"^> {re.escape(PROMPT)}\n(.*?)\n\ntime to first token", output, re.DOTALL | re.MULTILINE)[1]


def test_one_two_and_three_stages_give_the_same_answer_and_the_model_is_compiled_once(start, manifest: Path) -> None:
    answers = []
    for stages in (1, 2, 3):
        shoal = start("run", manifest, "--exact", "--stages", stages, "--prompt", PROMPT, "--max-tokens", 24)
        assert shoal.end() == 0, shoal.output()
        out = shoal.out.read_text()
        answers.append(answer_of(out))
        # The plan, and compute and wait of each stage.
        assert len(re.findall(r"^\d local.* CPU ", out, re.MULTILINE)) == stages
        assert len(re.findall(r"^\d +\d+\.\d\d ms", out, re.MULTILINE)) == stages
        assert re.search(r"speed +\d+\.\d tokens/s", out)
        # Another test of this session may have compiled it before the first run; nothing compiles it after that.
        assert stages == 1 or "compiling" not in shoal.err.read_text()
        assert shoal.left_over() == []
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].strip()


@pytest.fixture
def serving(start, manifest: Path):
    """A pipeline of two stages that serves."""
    shoal = start("run", manifest, "--stages", 2, "--port", 0)
    return shoal, shoal.ready_url()


def say_hello(url: str) -> str:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_everything(serving, number: int, code: int) -> None:
    shoal, url = serving
    assert say_hello(url)
    assert len(shoal.children()) == 3
    assert shoal.end(number) == code
    assert shoal.left_over() == []
    assert shoal.err.read_text().count("error") == 0


def test_ctrl_c_in_mid_answer_stops_everything_too(serving) -> None:
    shoal, url = serving
    body = {"model": "smollm2", "prompt": "One, two,", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120, trust_env=False) as response:
        next(response.iter_lines())
        assert shoal.end(signal.SIGINT) == 130
    assert shoal.left_over() == []


def test_killing_shoal_leaves_no_process(serving) -> None:
    shoal, _ = serving
    assert shoal.end(signal.SIGKILL) == -signal.SIGKILL
    assert shoal.left_over() == []


def test_a_killed_stage_is_reported_and_started_again_and_requests_are_answered(serving) -> None:
    shoal, url = serving
    shoal.child("shoal_stage").send_signal(signal.SIGKILL)
    shoal.until(lambda: "is ready again" in shoal.err.read_text())
    assert re.search(r"^stage \d was killed by SIGKILL.*starting it again$", shoal.err.read_text(), re.MULTILINE)
    shoal.until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200)
    assert say_hello(url)
    assert shoal.end(signal.SIGINT) == 130
    assert shoal.left_over() == []


def test_two_replicas_share_the_work_and_one_stands_in_for_the_other(start, manifest: Path) -> None:
    manifest.write_text(manifest.read_text() + "  replicas: 2\n  stages: {count: 1}\n")
    shoal = start("run", manifest, "--port", 0)
    url = shoal.ready_url()
    assert "replicas" not in shoal.output()
    assert len(shoal.children()) == 3

    def pipelines() -> list[dict]:
        return httpx.get(f"{url}/status", trust_env=False).json()["pipelines"]

    shoal.until(lambda: [pipeline["ready"] for pipeline in pipelines()] == [True, True])
    body = {"model": "smollm2", "prompt": "One, two,", "max_tokens": 200, "stream": True, "ignore_eos": True}
    with (
        httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120, trust_env=False) as first,
        httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120, trust_env=False) as second,
    ):
        lines = [first.iter_lines(), second.iter_lines()]
        assert all(next(each) for each in lines)
        assert [pipeline["running"] for pipeline in pipelines()] == [1, 1]
        shoal.child("shoal_stage").send_signal(signal.SIGKILL)
        for rest in lines:
            said = [line for line in rest if line]
            assert said[-1] == "data: [DONE]"
            assert not [line for line in said if '"error"' in line]
    shoal.until(lambda: "is ready again" in shoal.err.read_text())
    assert re.search(r"^pipeline \d stage 0 was killed by SIGKILL.*starting it again$", shoal.err.read_text(), re.M)
    assert shoal.end(signal.SIGINT) == 130
    assert shoal.left_over() == []


def serving_stage(shoal) -> psutil.Process:
    """The process that plan.json names, found by its port."""
    folder = Path(re.search(r"\(logs: (\S+)\)", shoal.out.read_text())[1])
    address = json.loads((folder / "plan.json").read_text())["pipelines"][0]["stages"][0]["address"]
    for each in shoal.children():
        listening = [c.laddr.port for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        if int(address.rpartition(":")[2]) in listening:
            return each
    raise AssertionError(f"nobody listens at {address}")


def test_a_standby_takes_the_place_of_a_stage_that_is_killed_and_of_one_that_is_silent(start, manifest: Path) -> None:
    manifest.write_text(manifest.read_text() + "  placement: {sparePods: 1}\n")
    shoal = start("run", manifest, "--port", 0)
    url = shoal.ready_url()
    assert "standby: " in shoal.out.read_text()
    serving_stage(shoal).send_signal(signal.SIGKILL)
    shoal.until(lambda: "standby 0 takes its place" in shoal.err.read_text())
    shoal.until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200)
    assert say_hello(url)
    shoal.until(lambda: "stage 0 is ready again and stands by" in shoal.err.read_text())
    serving_stage(shoal).send_signal(signal.SIGSTOP)
    shoal.until(lambda: "standby 0 has fallen silent; stage 0 takes its place" in shoal.err.read_text())
    shoal.until(lambda: "standby 0 is ready again and stands by" in shoal.err.read_text())
    shoal.until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200)
    assert say_hello(url)
    assert shoal.end(signal.SIGINT) == 130
    assert shoal.left_over() == []


def test_case_12_a_killed_router_is_started_again_on_its_port_and_the_stages_stay(serving) -> None:
    shoal, url = serving
    stages = {each.pid for each in shoal.children() if "shoal_stage" in each.cmdline()}
    shoal.child("shoal_router").send_signal(signal.SIGKILL)
    shoal.until(lambda: "router is ready again" in shoal.err.read_text())
    assert say_hello(url)
    assert {each.pid for each in shoal.children() if "shoal_stage" in each.cmdline()} == stages
    assert shoal.end(signal.SIGINT) == 130
    assert shoal.left_over() == []


def test_a_stage_that_dies_during_a_prompt_ends_the_run_with_one_line(start, manifest: Path) -> None:
    shoal = start("run", manifest, "--stages", 2, "--prompt", "Count to a thousand.", "--max-tokens", 400)
    shoal.ready_url()
    shoal.until(lambda: "> Count" in shoal.out.read_text())
    shoal.child("shoal_stage").send_signal(signal.SIGKILL)
    assert shoal.end() == 6
    assert re.search(
        r"^shoal: error: stage \d was killed by SIGKILL.*\(log: \S+\)$", shoal.err.read_text(), re.MULTILINE
    )
    assert shoal.left_over() == []


def test_the_run_s_folder_holds_the_plan_with_addresses_and_the_logs(serving, session_cache: Path) -> None:
    shoal, _ = serving
    folder = Path(re.search(r"\(logs: (\S+)\)", shoal.out.read_text())[1])
    assert folder.parent == session_cache / "shoal" / "runs"
    plan = json.loads((folder / "plan.json").read_text())
    assert all(stage["address"] for stage in plan["pipelines"][0]["stages"])
    assert {path.name for path in folder.glob("*.log")} == {"stage-0.log", "stage-1.log", "router.log"}
    assert shoal.end(signal.SIGINT) == 130
