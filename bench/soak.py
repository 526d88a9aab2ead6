"""Half an hour of the same load: whether throughput, waits or memory drift.

A local pipeline as `shoal run` has it, SmolLM2 in INT4 on two stages, and the load generator of `shoal bench URL
--minutes`: four users over HTTP, each asking again as soon as it is answered. What is read beside it is the memory of
router and stages. With --json the drift plot is written beside the file, as FILE-drift.svg.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from bench.measure import Spread
from bench.models import smollm2
from bench.report import Report
from bench.systems.local import local_commands, local_plan
from shoal.manifest import read_manifest
from shoal.resource import SpeculativeMode
from shoal_cli.client import RouterClient
from shoal_cli.load.drift import Soak
from shoal_cli.load.drift_chart import drift_svg
from shoal_cli.load.outcome import soak_document
from shoal_cli.load.soak import Levels, SoakLoad, kv_blocks_held, run_soak
from shoal_cli.load.terminal import say_window
from shoal_cli.local.launch import LocalCommands
from shoal_cli.local.pipeline import LocalPipeline

TITLE = "half an hour of the same load: drift of throughput, waits and memory, with a plot"

STAGES, USERS, PROMPT_TOKENS, TOKENS, CONTEXT = 2, 4, (32, 128), 64, 512
MINUTES, QUICK_MINUTES = 30.0, 0.4
LOAD_SECONDS = 120.0


def run(quick: bool) -> Report:
    """Measure; `quick` takes less than half a minute."""
    notes: list[str] = []
    load = SoakLoad(USERS, PROMPT_TOKENS, TOKENS, 60 * (QUICK_MINUTES if quick else MINUTES))
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        soak = asyncio.run(_soak(Path(folder), load, notes))
    report = report_of(soak, load)
    report.notes += notes
    return report


def report_of(soak: Soak, load: SoakLoad) -> Report:
    """Its figures, and the plot. Pure."""
    report = Report()
    report.add("minutes", load.seconds / 60)
    report.add("answers", soak.answers)
    report.add("errors", soak.failed)
    report.add("streams_lost", soak.lost)
    for name, change in soak.changes.items():
        figure, _, process = name.partition(".")
        report.add(f"{figure}_drift.{process}" if process else f"{figure}_drift", change.ratio)
    report.add("tokens_per_s", Spread.of([window.tokens_per_second for window in soak.windows]))
    for name, spreads in (
        ("ttft", [window.ttft for window in soak.windows]),
        ("itl", [window.itl for window in soak.windows]),
    ):
        measured = [each for each in spreads if each is not None]
        if measured:
            report.add(f"{name}_p50_ms", Spread.of([each.p50 for each in measured]))
            report.add(f"{name}_p99_ms", Spread.of([each.p99 for each in measured]))
    for process in soak.windows[-1].memory:
        held = [window.memory[process] for window in soak.windows if process in window.memory]
        report.add(f"memory_mib.{process}", Spread.of(held))
    report.notes += [
        f"{load.users} users at once, prompts of about {load.prompt_tokens[0]} and {load.prompt_tokens[-1]} tokens in "
        f"turn, at most {load.max_tokens} greedy tokens each; {STAGES} stages, router and clients on the same cores",
        f"drift: the last third over the first, after a tenth of the time; spreads: over {len(soak.windows)} windows "
        f"of {soak.windows[0].seconds:g} s",
        "streams_lost: of the errors, answers that had begun",
    ]
    if soak.failed:
        report.notes.append(f"the first error: {soak.first_error}")
    report.pictures["drift"] = drift_svg(soak.windows, f"SmolLM2 on {STAGES} stages, {load.users} users, INT4")
    report.details.update(soak_document(soak))
    return report


async def _soak(folder: Path, load: SoakLoad, notes: list[str]) -> Soak:
    model = smollm2().directory
    plan = local_plan(read_manifest(model), STAGES, streams=USERS, max_context=CONTEXT)
    commands = local_commands(
        model,
        kind=LocalCommands,
        streams=USERS,
        max_context=CONTEXT,
        speculative_mode=SpeculativeMode.AUTO,
        speculative_max_tokens=8,
    )
    async with LocalPipeline(plan, commands, folder, LOAD_SECONDS) as local:
        url = await local.start()
        names = ["router", *(seat.name for seat in local.stages)]
        async with RouterClient(url) as client:

            async def levels() -> Levels:
                return await kv_blocks_held(client), _memory(local, names)

            # A process that ends is started again, as for users; that it ended belongs into the report.
            watching = asyncio.create_task(local.watch(notes.append))
            soaking = asyncio.create_task(run_soak(client, "bench", load, say_window, levels))
            try:
                await asyncio.wait({watching, soaking}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():  # one cannot be brought up again
                    watching.result()
                return await soaking
            finally:
                watching.cancel()
                soaking.cancel()
                await asyncio.gather(watching, soaking, return_exceptions=True)


def _memory(local: LocalPipeline, names: list[str]) -> dict[str, float]:
    """MiB that the processes hold; one that is being started again has none."""
    found = {}
    for name in names:
        pid = local.pid_of(name)
        if pid is not None:
            with suppress(psutil.NoSuchProcess):
                found[name] = psutil.Process(pid).memory_info().rss / 2**20
    return found
