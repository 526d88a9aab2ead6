"""One local run from the compiled model on: plan, processes, then either serve until a signal or answer a question."""

from __future__ import annotations

import time
from pathlib import Path

from shoal.plan import ModelFacts, Plan
from shoal.resource import ExecutionMode, KvPrecision, ShardedModel
from shoal_cli.asking import Question, ask
from shoal_cli.cache import openvino_dir, runs_dir
from shoal_cli.local.adapt import local_plan, missing_standbys
from shoal_cli.local.launch import Engine, LocalCommands, threads_for
from shoal_cli.local.machine import this_machine
from shoal_cli.local.models import LocalModel
from shoal_cli.local.pipeline import LocalPipeline
from shoal_cli.local.rundir import run_directory
from shoal_cli.signals import run_until_signal
from shoal_cli.tables import print_plan
from shoal_cli.terminal import progress, results

LOAD_BASE_S = 120.0
LOAD_BYTES_PER_S = 20e6
"""A slow disk; a load that takes longer than base + size / this is given up."""


def serve(
    model: ShardedModel,
    local: LocalModel,
    draft: LocalModel | None,
    *,
    host: str,
    port: int,
    engine: Engine | None,
    question: Question | None,
) -> None:
    """Run the model; returns when the question is answered, otherwise ends by a signal or an error."""
    machine = this_machine()
    facts = ModelFacts.of_manifest(local.manifest)
    plan = local_plan(model, facts, machine)
    print_plan(plan, model.metadata.name)
    if line := missing_standbys(model, plan):
        progress().print(line)
    scheduler, recovery = model.spec.scheduler, model.spec.recovery
    cache = openvino_dir(local.manifest.digest)
    cache.mkdir(parents=True, exist_ok=True)
    commands = LocalCommands(
        model=local.path,
        openvino_cache=cache,
        host=host,
        port=port,
        served_names=model.served_names,
        streams=plan.streams,
        max_context=plan.max_context,
        prefill_chunk=scheduler.prefill_chunk,
        max_queue=scheduler.max_queue,
        kv_precision=None if scheduler.kv_precision is KvPrecision.AUTO else scheduler.kv_precision.lower(),
        threads=threads_for(machine.cores, sum(len(pipeline.stages) for pipeline in plan.pipelines)),
        exact=model.spec.execution.mode is ExecutionMode.EXACT,
        prefix_cache=scheduler.prefix_cache,
        recovery_attempts=recovery.max_attempts,
        recovery_seconds=recovery.max_pause_seconds,
        speculative_mode=scheduler.speculative.mode,
        speculative_max_tokens=scheduler.speculative.max_tokens,
        draft_model=None if draft is None else draft.path,
        engine=engine,
    )
    deadline = LOAD_BASE_S + facts.total_bytes / LOAD_BYTES_PER_S
    with run_directory(runs_dir()) as directory:
        run_until_signal(_run(plan, commands, directory, deadline, question))


async def _run(
    plan: Plan, commands: LocalCommands, directory: Path, deadline: float, question: Question | None
) -> None:
    started = time.monotonic()
    stages = sum(len(pipeline.stages) for pipeline in plan.pipelines)
    async with LocalPipeline(plan, commands, directory, deadline) as pipeline:
        loading = [f"{stages} stage{'s' if stages > 1 else ''}"]
        if plan.standbys:
            loading.append(f"{len(plan.standbys)} standby{'s' if len(plan.standbys) > 1 else ''}")
        if commands.draft_model is not None:
            loading.append("the draft model")
        with progress().status(f"loading {' and '.join(loading)}"):
            url = await pipeline.start()
        results().print(f"ready after {time.monotonic() - started:.1f} s: {url}/v1 (logs: {directory})", soft_wrap=True)
        if question is not None:
            await pipeline.while_alive(ask(url, question))
            return
        results().print(_example(url, commands.served_names[0]), soft_wrap=True)
        await pipeline.watch(lambda text: progress().print(text))


def _example(url: str, model: str) -> str:
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'
    return (
        f"\n  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n"
        f"  shoal chat --url {url}\n\nCtrl-C stops it."
    )
