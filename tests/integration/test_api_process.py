"""`python -m shoal_router` as a process, over real gRPC stages with the fake engine in this process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from shoal.manifest import MANIFEST_FILE
from shoal.measured import MEASURED_PATH, Measured, placement_of
from shoal.plan.document import Plan
from shoal.vocabulary import read_vocabulary
from shoal_router.pipeline.fake import planned_at
from shoal_router.text.fake import CHATML, fake_text_model, fake_tokenizer
from shoal_stage.draft.fake import start_draft
from shoal_stage.engine.fake import FakeEngine, fake_manifest, greedy_text
from shoal_stage.server.fake import fake_pipeline, start_stage
from shoaltest.waiting import until_elsewhere

TEXT = fake_text_model()
VOCAB = TEXT.vocab_size
BODY = {"model": "fake", "prompt": "once upon", "temperature": 0, "max_tokens": 8, "ignore_eos": True}


@dataclass
class Router:
    """The process, its announcements and its log."""

    process: asyncio.subprocess.Process
    events: dict[str, dict[str, str]] = field(default_factory=dict)

    async def event(self, name: str) -> dict[str, str]:
        async with asyncio.timeout(60):
            while name not in self.events:
                line = await self.process.stdout.readline()
                assert line, (await self.process.stderr.read()).decode()
                entry = json.loads(line)
                self.events[entry.pop("event")] = entry
        return self.events[name]

    async def ended(self) -> tuple[int, str]:
        """Exit code and stderr."""
        async with asyncio.timeout(60):
            stderr = (await self.process.stderr.read()).decode()
            return await self.process.wait(), stderr


@asynccontextmanager
async def router(model: Path, plan: Path, *options: str, listen: str = "127.0.0.1:0"):
    argv = ["-P", "-m", "shoal_router", f"--model={model}", f"--plan={plan}", f"--listen={listen}", *options]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=pipe, stderr=pipe)
    try:
        yield Router(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory of the fake engine's model and the fake tokenizer."""
    directory = tmp_path / "model"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / MANIFEST_FILE).write_bytes(fake_manifest(vocab_size=VOCAB).canonical_json())
    (directory / "tokenizer" / "tokenizer.json").write_text(fake_tokenizer().to_str())
    (directory / "tokenizer" / "chat_template.jinja").write_text(CHATML)
    (directory / "tokenizer" / "generation_config.json").write_text('{"eos_token_id": 2, "transformers_version": "1"}')
    return directory


def write_plan(path: Path, stages, digest: str | None = None) -> Path:
    planned = planned_at(*zip(*stages, strict=True), digest)
    plan = Plan(model_digest=digest, pipelines=(planned.stages,))
    fresh = path.with_suffix(".new")  # as everybody who writes plans does: a reader never sees half of one
    fresh.write_text(plan.model_dump_json(by_alias=True))
    return fresh.replace(path)


async def test_the_whole_way_from_a_request_to_real_stages_and_back(tmp_path: Path, model: Path) -> None:
    async with fake_pipeline(stages=2, vocab_size=VOCAB) as stages:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        async with router(model, plan, "--served-name=fake", "--served-name=org/fake") as process:
            url = (await process.event("listening"))["url"]
            await process.event("ready")
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                answer = (await client.post("/v1/completions", json=BODY)).json()
                expected = greedy_text(TEXT.encode("once upon", add_special_tokens=True), 8, vocab_size=VOCAB)
                assert answer["usage"]["completion_tokens"] == 8
                streamed = await client.post("/v1/completions", json=BODY | {"stream": True})
                texts = [
                    json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                    for line in streamed.text.splitlines()
                    if line.startswith("data: {")
                ]
                assert "".join(texts) == answer["choices"][0]["text"]
                # The last character may be cut by the length limit, and is left out then.
                assert TEXT.decode(expected, begins_text=False).startswith(answer["choices"][0]["text"])
                assert answer["choices"][0]["text"]
                models = (await client.get("/v1/models")).json()["data"]
                assert [(m["id"], m["max_model_len"]) for m in models] == [("fake", 512), ("org/fake", 512)]
                assert (await client.get("/health/ready")).status_code == 200
                status = (await client.get("/status")).json()
                assert (status["ready"], len(status["timings"]), status["steps"] > 0) == (True, 2, True)
            process.process.send_signal(signal.SIGTERM)
            code, log = await process.ended()
            assert code == 0
            lines = [json.loads(line) for line in log.splitlines()]
            access = [line for line in lines if line.get("path") == "/v1/completions"]
            assert [line["status"] for line in access] == [200, 200]
            assert not [line for line in lines if line["level"] == "error"]


async def test_a_router_drafts_by_the_draft_process_it_is_given_and_says_the_same(tmp_path: Path, model: Path) -> None:
    vocabulary = read_vocabulary(model, fake_manifest(vocab_size=VOCAB))
    async with (
        fake_pipeline(stages=2, vocab_size=VOCAB) as stages,
        start_draft(vocabulary=vocabulary, vocab_size=VOCAB) as draft,
    ):
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        fixed = ("--speculative-mode=Fixed", "--speculative-max-tokens=3", f"--draft-address={draft.address}")
        answers = []
        for options in (("--speculative-mode=Off",), fixed):
            async with router(model, plan, "--served-name=fake", *options) as process:
                url = (await process.event("listening"))["url"]
                await process.event("ready")
                async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                    answer = (await client.post("/v1/completions", json=BODY | {"max_tokens": 60})).json()
                    answers.append(answer["choices"][0]["text"])
                process.process.send_signal(signal.SIGTERM)
                code, log = await process.ended()
                assert (code, "defect" in log) == (0, False), log
        assert answers[0] == answers[1]
        assert draft.engine.steps > 0, "the draft process was asked"
        await until_elsewhere(lambda: not draft.engine.live)


async def test_a_draft_process_of_another_vocabulary_is_refused_by_name(tmp_path: Path, model: Path) -> None:
    async with fake_pipeline(stages=1, vocab_size=VOCAB) as stages, start_draft(vocab_size=VOCAB) as draft:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        async with router(model, plan, "--served-name=fake", f"--draft-address={draft.address}") as process:
            url = (await process.event("listening"))["url"]
            await process.event("ready")
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                assert (await client.post("/v1/completions", json=BODY)).status_code == 200
            process.process.send_signal(signal.SIGTERM)
            code, log = await process.ended()
        assert code == 0
        assert "draft model fake has a vocabulary of 256 tokens" in log
        assert draft.engine.steps == 0


async def test_case_69_leaving_at_token_five_frees_the_slot_on_all_stages(tmp_path: Path, model: Path) -> None:
    async with fake_pipeline(stages=3, vocab_size=VOCAB) as stages:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        async with router(model, plan, "--served-name=fake") as process:
            url = (await process.event("listening"))["url"]
            await process.event("ready")
            body = BODY | {"stream": True, "max_tokens": 400, "n": 2}
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                async with client.stream("POST", "/v1/completions", json=body) as response:
                    seen = 0
                    async for line in response.aiter_lines():
                        seen += line.startswith("data: ")
                        if seen == 5:
                            break
                    assert all(stage.engine.live for stage in stages)
                await until_elsewhere(lambda: not any(stage.engine.live for stage in stages), seconds=1)
                answer = await client.post("/v1/completions", json=BODY)
                assert answer.json()["usage"]["completion_tokens"] == 8


async def test_case_69_a_queued_request_that_is_cancelled_disturbs_nobody(tmp_path: Path, model: Path) -> None:
    """One sequence at a time: who waits behind another and leaves reaches no stage, and the next takes its turn."""
    allowed, fed = threading.Event(), []

    def on_run(stage, rows):
        fed.extend(row.tokens for row in rows)
        allowed.wait(30)

    body = BODY | {"max_tokens": 40}
    async with fake_pipeline(stages=2, vocab_size=VOCAB, sequences=1, on_run=on_run) as stages:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        async with router(model, plan, "--served-name=fake") as process:
            url = (await process.event("listening"))["url"]
            await process.event("ready")
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:

                async def waiting(count):
                    async def counted():
                        return (await client.get("/status")).json()["waiting"] == count

                    await until_elsewhere(counted)

                first = asyncio.create_task(client.post("/v1/completions", json=body))
                await until_elsewhere(lambda: fed)
                leaves = asyncio.create_task(client.post("/v1/completions", json=body | {"prompt": "never"}))
                await waiting(1)
                last = asyncio.create_task(client.post("/v1/completions", json=body))
                await waiting(2)
                leaves.cancel()
                await waiting(1)
                allowed.set()
                answers = [(await task).json()["choices"][0]["text"] for task in (first, last)]
            assert answers[0] == answers[1] != ""
            prompts = [TEXT.encode(prompt, add_special_tokens=True) for prompt in ("once upon", "never")]
            assert [prompt in fed for prompt in prompts] == [True, False]


HALVES = ((0, 3), (3, 6))


def half(index: int, on_run=None, **kwargs):
    """One of two stages that together hold the fake model."""
    return start_stage(
        lambda: FakeEngine(*HALVES[index], vocab_size=VOCAB, on_run=on_run),
        manifest=fake_manifest(vocab_size=VOCAB),
        blocks=HALVES[index],
        **kwargs,
    )


class Hold:
    """Lets a stage work for some rows, then keeps its compute thread until it is let go."""

    def __init__(self) -> None:
        self.rows = 10**9
        self.let_go = threading.Event()

    def __call__(self, rows) -> None:
        self.rows -= len(rows)
        if self.rows < 0:
            self.let_go.wait(30)


def texts(lines):
    """What a stream's lines say, by choice."""
    said = ["", ""]
    for line in lines:
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                said[choice["index"]] += choice["text"]
    return said


# With drafts of the answer that was just finished, a row yields up to nine tokens.
@pytest.mark.parametrize(("mode", "rows"), [("Off", 40), ("Auto", 8)])
async def test_case_9_the_same_sse_stream_goes_on_when_a_stage_is_lost(
    tmp_path: Path, model: Path, mode: str, rows: int
) -> None:
    """The client sees a pause with keep-alive comments, then the rest of the very answer it would have got."""
    body = BODY | {"stream": True, "max_tokens": 120, "n": 2, "temperature": 1, "seed": 9}
    hold = Hold()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(half(0))
        second = await stack.enter_async_context(half(1, hold))
        plan = write_plan(tmp_path / "plan.json", zip((first.address, second.address), HALVES, strict=True))
        options = ("--served-name=fake", "--keep-alive-seconds=0.1", f"--speculative-mode={mode}")
        process = await stack.enter_async_context(router(model, plan, *options))
        url = (await process.event("listening"))["url"]
        await process.event("ready")
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        undisturbed = (await client.post("/v1/completions", json=body)).text.split("\n")
        hold.rows = rows
        lines: list[str] = []
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                lines += [line] if line else []
                if line == ": keep-alive" and not hold.let_go.is_set():
                    await second.kill()
                    hold.let_go.set()
                    spare = await stack.enter_async_context(half(1))
                    write_plan(plan, zip((first.address, spare.address), HALVES, strict=True))
    assert hold.let_go.is_set(), "the stage was never lost"
    assert sum(line.startswith("data:") for line in lines[: lines.index(": keep-alive")]) > 0
    assert lines[-1] == "data: [DONE]"
    assert not [line for line in lines if '"error"' in line]
    assert texts(lines) == texts(undisturbed)


async def test_case_1_without_a_replacement_the_stream_ends_with_an_error_and_the_service_comes_back_by_itself(
    tmp_path: Path, model: Path
) -> None:
    hold = Hold()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(half(0))
        second = await stack.enter_async_context(half(1, hold))
        plan = write_plan(tmp_path / "plan.json", zip((first.address, second.address), HALVES, strict=True))
        options = ("--served-name=fake", "--speculative-mode=Off", "--recovery-seconds=0.5")
        process = await stack.enter_async_context(router(model, plan, *options))
        url = (await process.event("listening"))["url"]
        await process.event("ready")
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        hold.rows = 5
        async with client.stream("POST", "/v1/completions", json=BODY | {"stream": True, "max_tokens": 100}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await second.kill()
            hold.let_go.set()
            async with asyncio.timeout(20):
                rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == ("generation_failed", "server_error")
        assert second.address in error["message"]
        ready = await client.get("/health/ready")
        assert ready.status_code == 503
        assert second.address in ready.json()["detail"]
        refused = await client.post("/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "pipeline_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        await stack.enter_async_context(half(1, listen=second.address))

        async def is_ready() -> bool:
            return (await client.get("/health/ready")).status_code == 200

        await until_elsewhere(is_ready)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


async def test_case_28_until_the_stages_are_there_it_answers_503_with_the_reason(tmp_path: Path, model: Path) -> None:
    with socket.socket() as held:  # bound but not listening: nobody answers there, nobody else gets the port
        held.bind(("127.0.0.1", 0))
        plan = write_plan(tmp_path / "plan.json", [(f"127.0.0.1:{held.getsockname()[1]}", (0, 6))])
        async with router(model, plan, "--served-name=fake") as process:
            url = (await process.event("listening"))["url"]
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                assert (await client.get("/health/live")).status_code == 200
                ready = await client.get("/health/ready")
                assert ready.status_code == 503
                assert ready.json()["detail"]
                for path in ("/v1/completions", "/v1/chat/completions"):
                    body = {"model": "fake", "stream": True}
                    prompt = (
                        {"prompt": "x"}
                        if path == "/v1/completions"
                        else {"messages": [{"role": "user", "content": "x"}]}
                    )
                    refused = await client.post(path, json=body | prompt)
                    assert refused.status_code == 503
                    assert int(refused.headers["retry-after"]) >= 1
                    assert refused.json()["error"]["code"] == "pipeline_unavailable"
            process.process.send_signal(signal.SIGTERM)
            assert (await process.ended())[0] == 0
            assert "ready" not in process.events


async def test_sigterm_lets_a_running_answer_end_and_takes_no_new_one(tmp_path: Path, model: Path) -> None:
    async with fake_pipeline(stages=1, vocab_size=VOCAB) as stages:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        async with router(model, plan, "--served-name=fake") as process:
            url = (await process.event("listening"))["url"]
            await process.event("ready")
            body = BODY | {"stream": True, "max_tokens": 300}
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                async with client.stream("POST", "/v1/completions", json=body) as response:
                    lines = response.aiter_lines()
                    await anext(lines)
                    process.process.send_signal(signal.SIGTERM)
                    rest = [line async for line in lines if line]
                assert rest[-1] == "data: [DONE]"
                assert '"finish_reason":"length"' in rest[-2]
                code, _ = await process.ended()
                assert code == 0
                with pytest.raises(httpx.ConnectError):
                    await client.get("/health/live")


async def test_sigterm_ends_an_answer_that_takes_too_long_with_an_error_event(tmp_path: Path, model: Path) -> None:
    stuck, released = threading.Event(), threading.Event()

    def on_run(stage, rows):
        if stuck.is_set():
            released.wait(30)

    async with fake_pipeline(stages=1, vocab_size=VOCAB, on_run=on_run) as stages:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        async with router(model, plan, "--served-name=fake", "--grace-seconds=0.2") as process:
            url = (await process.event("listening"))["url"]
            await process.event("ready")
            body = BODY | {"stream": True, "max_tokens": 400}
            try:
                async with (
                    httpx.AsyncClient(base_url=url, timeout=30) as client,
                    client.stream("POST", "/v1/completions", json=body) as response,
                ):
                    lines = response.aiter_lines()
                    await anext(lines)
                    stuck.set()
                    process.process.send_signal(signal.SIGTERM)
                    rest = [line async for line in lines if line]
                assert rest[-1] == "data: [DONE]"
                assert "the router is stopping" in rest[-2]
                assert (await process.ended())[0] == 0
            finally:
                released.set()


async def test_a_port_in_use_is_one_line_and_exit_code_5(tmp_path: Path, model: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", [("127.0.0.1:1", (0, 6))])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with router(model, plan, listen=f"127.0.0.1:{port}") as process:
            code, stderr = await process.ended()
    assert code == 5
    assert stderr == f"error: port {port} on 127.0.0.1 is in use: choose another with --listen 127.0.0.1:PORT\n"


async def test_a_plan_for_another_model_is_refused_with_both_digests(tmp_path: Path, model: Path) -> None:
    async with fake_pipeline(stages=1, vocab_size=VOCAB) as stages:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages], "a" * 64)
        async with router(model, plan) as process:
            url = (await process.event("listening"))["url"]
            async with httpx.AsyncClient(base_url=url) as client:
                details = ""
                async with asyncio.timeout(20):
                    while "aaaaaaaaaaaa" not in details:  # the first attempt comes right after `listening`
                        details = (await client.get("/health/ready")).json()["detail"]
            assert stages[0].manifest.digest[:12] in details


async def test_it_dies_with_its_parent(tmp_path: Path, model: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", [("127.0.0.1:1", (0, 6))])
    script = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE); "
        "print(p.stdout.readline().decode(), end='', flush=True); sys.stdin.read()"
    )
    options = ["--listen=127.0.0.1:0", "--die-with-parent"]
    argv = [sys.executable, "-m", "shoal_router", f"--model={model}", f"--plan={plan}", *options]
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *argv, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(60):
        url = json.loads(await parent.stdout.readline())["url"]
        parent.kill()
        await parent.wait()
        host, port = url.removeprefix("http://").split(":")
        refused = False
        while not refused:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
            except ConnectionError as error:  # a reset is still the old process's end
                refused = isinstance(error, ConnectionRefusedError)
            await asyncio.sleep(0)


async def test_it_measures_once_when_nobody_asks_and_tells_it_beside_the_metrics(tmp_path: Path, model: Path) -> None:
    async with fake_pipeline(stages=2, vocab_size=VOCAB) as stages:
        plan = write_plan(tmp_path / "plan.json", [(stage.address, stage.blocks) for stage in stages])
        async with router(model, plan, "--metrics-listen=127.0.0.1:0", "--measure") as process:
            metrics = (await process.event("listening"))["metrics"]
            await process.event("ready")
            async with httpx.AsyncClient(timeout=30) as client, asyncio.timeout(60):
                where = metrics.replace("/metrics", MEASURED_PATH)
                while (answer := await client.get(where)).status_code == 204:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
                measured = Measured.model_validate(answer.json())
                assert measured.placement == placement_of(Plan.model_validate_json(plan.read_text()))
                assert measured.tokens_per_second > 0
                assert measured.first_token_ms > 0
                assert measured.prompt_tokens > 50
                # It is nobody's request.
                assert 'shoal_requests_total{finish_reason="length"} 1.0' not in (await client.get(metrics)).text
