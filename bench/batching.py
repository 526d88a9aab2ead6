"""One core, 1 to 16 users at once: our whole path and our engine alone against GenAI's ContinuousBatchingPipeline.

All run the same INT4 weights on the same core, alternating. `over_genai_cb.B`: scheduler, step loop, gRPC, a stage
process, sampler and detokenizers, all on that core. `engine_over_genai_cb.B`: the paged engine in a plain loop. GenAI
runs with its own choice of KV precision and with ours; each ratio is against the faster of the two at that B.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.latency import Latencies
from bench.measure import alternate
from bench.models import bench_cache, smollm2
from bench.peers.genai import export_monolith
from bench.prompts import prompts
from bench.report import Report
from bench.workers import Worker, last_core, rate
from shoal_router.step_loop import StepLoopSettings
from shoal_router.text.model import load_text_model
from shoal_stage.engine.settings import EngineSettings

TITLE = "one core, many users: against GenAI's continuous batching"

USERS = (1, 2, 4, 8, 16)
_CHUNK = StepLoopSettings().prefill_chunk


def run(quick: bool) -> Report:
    """Measure; `quick` makes few tokens and rounds, for 1 and 4 users."""
    model = smollm2()
    users, tokens, rounds = ((1, 4), 16, 1) if quick else (USERS, 32, 5)
    text = load_text_model(model.directory)
    ids = [list(text.encode(prompt, add_special_tokens=False)) for prompt in prompts()[: max(users)]]
    core, directory, seats = last_core(), str(model.directory), str(max(users))
    monolith = str(export_monolith(model.directory, model.checkpoint, bench_cache()))
    kv = EngineSettings().kv.value
    peers = {"genai_cb": [], f"genai_cb {kv}": [f"KV_CACHE_PRECISION={kv}"]}
    whole_path = [directory, str(core), "--streams", seats, "--no-prefix-cache"]
    report = Report()
    latencies = Latencies()
    with ExitStack() as stack:

        def worker(module: str, *arguments: str) -> Worker:
            return stack.enter_context(Worker(module, arguments, [core]))

        path = worker("bench.systems.whole_path", *whole_path)
        others = {name: worker("bench.peers.genai_cb", monolith, str(_CHUNK), *more) for name, more in peers.items()}
        others["engine"] = worker("bench.systems.engine", directory, seats)
        for count in users:
            request = {"prompts": ids[:count], "tokens": tokens}
            systems = {name: rate(peer, request) for name, peer in others.items()}
            systems["path"] = latencies.rate(f"path.{count}", path, request)
            measured = alternate(systems, rounds)
            best = max(peers, key=lambda name: measured.spread(name).median)
            report.add(f"over_genai_cb.{count}", measured.ratio("path", best))
            report.add(f"engine_over_genai_cb.{count}", measured.ratio("engine", best))
            for name in systems:
                report.add(f"tokens_per_s.{name}.{count}", measured.spread(name))
    for key in ("over_genai_cb", "engine_over_genai_cb"):
        report.add(f"{key}_min", min(float(report.results[f"{key}.{count}"]) for count in users))
    latencies.add_to(report)
    report.notes += [
        f"{tokens} greedy tokens each after prompts of about {len(ids[0])} tokens, core {core}",
        f"at most {_CHUNK} tokens of prompts a step on both sides, no prefix cache; our KV is {kv}; GenAI with one "
        f"thread, its default KV precision and {kv}, the faster one at each number of users",
    ]
    return report
