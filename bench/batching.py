"""One core, 1 to 16 users at once: our whole path and our engine alone against GenAI's ContinuousBatchingPipeline.

All run the same INT4 weights on the same core, alternating. `over_genai_cb.B`: scheduler, step loop, gRPC, a stage
process, sampler and detokenizers, all on that core. `engine_over_genai_cb.B`: the paged engine in a plain loop.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.measure import alternate
from bench.models import bench_cache, smollm2
from bench.peers.genai import export_monolith
from bench.prompts import prompts
from bench.report import Report
from bench.workers import Worker, last_core, rate
from shoal_router.text.model import load_text_model

TITLE = "one core, many users: against GenAI's continuous batching"

USERS = (1, 2, 4, 8, 16)


def run(quick: bool) -> Report:
    """Measure; `quick` makes few tokens and rounds, for 1 and 4 users."""
    model = smollm2()
    users, tokens, rounds = ((1, 4), 24, 2) if quick else (USERS, 128, 5)
    text = load_text_model(model.directory)
    ids = [list(text.encode(prompt, add_special_tokens=False)) for prompt in prompts()[: max(users)]]
    core, directory, seats = last_core(), str(model.directory), str(max(users))
    monolith = str(export_monolith(model.directory, model.checkpoint, bench_cache()))
    report = Report()
    with ExitStack() as stack:
        workers = {
            "genai_cb": Worker("bench.peers.genai_cb", [monolith], [core]),
            "path": Worker("bench.systems.whole_path", [directory, str(core), "--streams", seats], [core]),
            "engine": Worker("bench.systems.engine", [directory, seats], [core]),
        }
        for worker in workers.values():
            stack.enter_context(worker)
        for count in users:
            request = {"prompts": ids[:count], "tokens": tokens}
            measured = alternate({name: rate(worker, request) for name, worker in workers.items()}, rounds)
            report.add(f"over_genai_cb.{count}", measured.ratio("path", "genai_cb"))
            report.add(f"engine_over_genai_cb.{count}", measured.ratio("engine", "genai_cb"))
            for name in workers:
                report.add(f"tokens_per_s.{name}.{count}", measured.spread(name))
    for key in ("over_genai_cb", "engine_over_genai_cb"):
        report.add(f"{key}_min", min(float(report.results[f"{key}.{count}"]) for count in users))
    report.notes.append(f"{tokens} greedy tokens each after prompts of about {len(ids[0])} tokens, core {core}")
    return report
