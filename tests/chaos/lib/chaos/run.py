"""One run: learn the answers in peace, then clients and blows at once, then peace again and the audit."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.prompts import prompts
from chaos.audit import Memory, grown, leaks
from chaos.clients import HUNG_SECONDS, Question, Verdicts, ask, client
from chaos.schedule import Blow, Event, schedule
from chaos.system import System, system
from shoal.errors import ShoalError

QUESTIONS = 12


@dataclass(slots=True)
class Report:
    """What happened. A run is good when there are no findings."""

    seed: int
    seconds: float
    events: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    longest_answer_s: float = 0.0
    grown_bytes: dict[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


async def run(model: Path, folder: Path, seed: int, seconds: float, clients: int) -> Report:
    """Run; `folder` keeps plan and logs."""
    report = Report(seed, seconds)
    async with system(model, folder, clients) as hit:
        answers = await _learn(hit.url, seed)
        verdicts, memory, stop = Verdicts(), Memory(), asyncio.Event()
        sampling = asyncio.create_task(memory.watch(hit))
        asking = [
            asyncio.create_task(client(hit.url, answers, random.Random(f"{seed}-{n}"), stop, verdicts))
            for n in range(clients)
        ]
        try:
            await _while_kept(hit, _hit_all(hit, schedule(seed, seconds), seconds, verdicts, report))
            await _while_kept(hit, hit.healed())
        except ShoalError as error:
            verdicts.findings.append(f"the local runtime gave up: {error}")
        stop.set()
        async with asyncio.timeout(2 * HUNG_SECONDS):
            await asyncio.gather(*asking)
        if not hit.watching.done():
            verdicts.findings += await leaks(hit)
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        report.said = hit.said
    report.grown_bytes = memory.growth()
    report.findings = verdicts.findings + grown(memory)
    report.ends, report.longest_answer_s = dict(verdicts.ends), round(verdicts.longest, 1)
    if not verdicts.ends["complete"]:
        report.findings.append("no answer was completed at all")
    return report


async def _while_kept(hit: System, work: Coroutine[Any, Any, None]) -> None:
    """Do it, unless the local runtime gives up, which raises its reason: the rest would only be its echo."""
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({working, hit.watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            hit.watching.result()
        await working
    finally:
        working.cancel()


async def _learn(url: str, seed: int) -> dict[Question, str]:
    """The right answers: greedy and drawn ones, when nothing happens."""
    rng = random.Random(seed)
    questions = [
        Question(prompt, rng.randint(8, 32), rng.choice([0.0, 0.8]), rng.randrange(1 << 30))
        for prompt in rng.sample(prompts(), QUESTIONS)
    ]
    async with httpx.AsyncClient(base_url=url, timeout=HUNG_SECONDS, trust_env=False) as http:
        return {question: await ask(http, question) for question in questions}


async def _hit_all(hit: System, events: list[Event], seconds: float, verdicts: Verdicts, report: Report) -> None:
    began = time.monotonic()
    for event in events:
        await asyncio.sleep(began + event.at - time.monotonic())
        if event.blow in (Blow.KILL_ROUTER, Blow.RESTART_ROUTER):
            await _hit_router(hit, event, verdicts, report)
        else:
            report.events.append(f"{event.at:.1f} s: {hit.hit(event)}")
    await asyncio.sleep(began + seconds - time.monotonic())


async def _hit_router(hit: System, event: Event, verdicts: Verdicts, report: Report) -> None:
    """Note for how long it is away. One that is told to stop lets answers go on for a while first.

    Only one that was ready since it started: a run gives up, and should, on a process that ends again and again before
    it ever was.
    """
    async with httpx.AsyncClient(base_url=hit.url, timeout=5.0, trust_env=False) as http:
        if not await _says(http, "/health/ready"):
            report.events.append(f"{event.at:.1f} s: {event.blow}: it is not ready, and left alone")
            return
    away = [time.monotonic(), float("inf")]
    verdicts.router_down.append(away)
    before = hit.local.pid_of("router")
    report.events.append(f"{event.at:.1f} s: {hit.hit(event)}")
    async with httpx.AsyncClient(base_url=hit.url, timeout=5.0, trust_env=False) as http:
        async with asyncio.timeout(HUNG_SECONDS):
            while hit.local.pid_of("router") in (before, None) or not await _says(http, "/health/live"):  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.05)
    # Connections that were made to the old one may be found broken a moment later.
    away[1] = time.monotonic() + 1.0


async def _says(http: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await http.get(path)).status_code == 200
    except httpx.TransportError:
        return False


def stop_at_signal(task: asyncio.Task[Report]) -> None:
    """Ctrl-C and SIGTERM end the run in order: no process may stay behind."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
