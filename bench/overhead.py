"""What it costs to be watched: pipelines with everything off against some that are traced, watched and scraped.

Each is two stages and a router with SmolLM2 in INT4, all on one core, and they take turns: 4 users at once, over HTTP.
Of the observed ones every request is exported to a collector, the page's stream of events is read, and /metrics is
scraped once a second. The collector, the clients and who watches run on the other cores.

Two pipelines that do the same differ by some per cent, by where their memory lies and by their place in the round. So
there are two of each kind, started and measured as off, on, on, off; `same` says how far the two without anything were
apart, which is what a difference must exceed to mean something.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from bench.measure import Spread, alternate
from bench.models import smollm2
from bench.report import Report
from bench.systems.local import local_commands, local_plan
from bench.workers import last_core
from shoal.manifest import read_manifest
from shoal.tracing import ENDPOINT
from shoal_cli.client import Answer, RouterClient
from shoal_cli.local.launch import LocalCommands
from shoal_cli.local.pipeline import Commands, LocalPipeline
from shoal_router.serve import listen

TITLE = "traces, metrics and somebody who watches: tokens a second with them over without"

USERS, TOKENS, CONTEXT = 4, 64, 512
SCRAPE_SECONDS = 1.0
LOAD_SECONDS = 120.0


def run(quick: bool) -> Report:
    """Measure; `quick` makes two rounds."""
    report = Report()
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(number) for number in range(4)]
        for folder in folders:
            folder.mkdir()
        asyncio.run(_fill(report, 2 if quick else 15, folders))
    return report


async def _fill(report: Report, rounds: int, folders: Sequence[Path]) -> None:
    loop = asyncio.get_running_loop()
    with _collector() as collector:
        async with AsyncExitStack() as stack:
            systems: dict[str, Callable[[], float]] = {}
            for name, folder in zip(("off, first", "on, first", "on, last", "off, last"), folders, strict=True):
                observed = name.startswith("on")
                commands = _commands(_free_address() if observed else "")
                with _exported_to(collector.url) if observed else nullcontext():
                    url = await _started(stack, folder, commands)
                systems[name] = _measure(loop, url, commands.metrics)
            # `alternate` waits for each figure: away from the loop, which goes on.
            figures = await asyncio.to_thread(alternate, systems, rounds)
    sums = {kind: figures.sums(f"{kind}, first", f"{kind}, last") for kind in ("on", "off")}
    report.add("ratio", Spread.of([on / off for on, off in zip(sums["on"], sums["off"], strict=True)]))
    report.add("same", figures.ratio("off, last", "off, first"))
    for name in figures.figures:
        report.add(f"tokens_per_s.{name}", figures.spread(name))
    report.add("exports", collector.exports)
    report.notes.append(
        f"{USERS} users at once, {TOKENS} greedy tokens each; every process of ours on core {last_core()}"
    )


def _measure(loop: asyncio.AbstractEventLoop, url: str, metrics: str) -> Callable[[], float]:
    return lambda: asyncio.run_coroutine_threadsafe(_rate(url, metrics), loop).result()


async def _started(stack: AsyncExitStack, folder: Path, commands: Commands) -> str:
    """A pipeline on the last core; its router's URL."""
    plan = local_plan(read_manifest(smollm2().directory), 2, streams=USERS, max_context=CONTEXT)
    with _on_last_core():
        local = await stack.enter_async_context(LocalPipeline(plan, commands, folder, LOAD_SECONDS))
        return await local.start()


def _commands(metrics: str = "") -> _Commands:
    return local_commands(
        smollm2().directory,
        kind=_Commands,
        streams=USERS,
        max_context=CONTEXT,
        recovery_attempts=0,
        metrics=metrics,
    )


@dataclass(frozen=True, slots=True)
class _Commands(LocalCommands):
    """The local runtime's command lines, the router's with metrics where they have an address."""

    metrics: str = ""

    def router(self, plan: Path, port: int | None = None, draft_address: str | None = None) -> list[str]:
        # Not super(): in a class with slots it does not find this class.
        command = LocalCommands.router(self, plan, port, draft_address)
        return [*command, f"--metrics-listen={self.metrics}"] if self.metrics else command


@contextmanager
def _on_last_core() -> Iterator[None]:
    """Children that are started within share the last core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {last_core()})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _exported_to(endpoint: str) -> Iterator[None]:
    """Children that are started within send their spans there."""
    os.environ[ENDPOINT] = endpoint
    try:
        yield
    finally:
        del os.environ[ENDPOINT]


def _free_address() -> str:
    """A port of the loopback that nobody has at this moment."""
    with closing(listen("127.0.0.1", 0)) as bound:
        return f"127.0.0.1:{bound.getsockname()[1]}"


async def _rate(url: str, metrics: str) -> float:
    """Tokens a second of all users; watched if there are metrics."""
    watching = [asyncio.create_task(each) for each in ((_watch(url), _scrape(metrics)) if metrics else ())]
    try:
        async with RouterClient(url) as client:
            begun = time.perf_counter()
            counts = await asyncio.gather(*(_ask(client, number) for number in range(USERS)))
            return sum(counts) / (time.perf_counter() - begun)
    finally:
        for task in watching:
            task.cancel()
        for outcome in await asyncio.gather(*watching, return_exceptions=True):
            if isinstance(outcome, Exception):  # a figure without the one who watched would be of something else
                raise outcome


async def _ask(client: RouterClient, number: int) -> int:
    answer = Answer()
    prompt = f"User {number} asks: why do fish swim in shoals? Answer at length."
    body = {"model": "bench", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    async for _ in client.stream("/v1/completions", body, answer):
        pass
    return answer.completion_tokens


async def _watch(url: str) -> None:
    async with (
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
        client.stream("GET", f"{url}/watch/events") as read,
    ):
        async for _ in read.aiter_bytes():
            pass


async def _scrape(address: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        while True:
            (await client.get(f"http://{address}/metrics")).raise_for_status()
            await asyncio.sleep(SCRAPE_SECONDS)


class _Collector:
    """Takes what is exported, and throws it away."""

    def __init__(self) -> None:
        self.exports = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                collector.exports += 1
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def _collector() -> Iterator[_Collector]:
    made = _Collector()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
