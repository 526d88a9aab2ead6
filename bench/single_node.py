"""One core, one user, the same quantised weights: our stage against OpenVINO GenAI, and what splitting costs.

`stage_over_genai`: scheduler, step loop, gRPC, one stage process, sampler and detokenizer, all on one core, against
GenAI's LLMPipeline (C++ loop) on that core with the faster of its two backends. `two_stage_over_one` and
`three_stage_over_one`: stages chained in one process. `no_beam_idx_over_beam_idx`: the stateful graph without the
Gather that lets the plugin fuse attention with its state.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.measure import Rounds, alternate
from bench.models import BenchModel, bench_cache, smollm2
from bench.peers.genai import export_monolith
from bench.report import Report
from bench.workers import Worker, last_core, rate
from shoal_router.text.model import load_text_model

TITLE = "one core, one user: our whole path against OpenVINO GenAI; the cost of splitting"

_PROMPT = "Explain in a few sentences why fish swim in shoals."
_GENAI = ("SDPA", "PA")


def run(quick: bool) -> Report:
    """Measure; `quick` makes few tokens and rounds."""
    model = smollm2()
    tokens, rounds = (32, 2) if quick else (96, 15)
    report = Report()
    prompt = list(load_text_model(model.directory).encode(_PROMPT, add_special_tokens=False))
    hop = _measure_path(model, prompt, tokens, rounds)
    best = min(_GENAI, key=lambda backend: hop.ratio("stage paged", f"genai {backend}").median)
    report.add("stage_over_genai", hop.ratio("stage paged", f"genai {best}"))
    for backend in _GENAI:
        report.add(f"stage_over_genai_{backend.lower()}", hop.ratio("stage paged", f"genai {backend}"))
    report.add("stateful_stage_over_genai", hop.ratio("stage stateful", f"genai {best}"))
    # In one process nothing waits, so short rounds in quick alternation suffer least from neighbours.
    split = _measure_split(model, prompt, 32, 2 if quick else 25)
    report.add("two_stage_over_one", split.ratio("2", "1"))
    report.add("three_stage_over_one", split.ratio("3", "1"))
    report.add("no_beam_idx_over_beam_idx", split.ratio("no beam_idx", "beam_idx"))
    for name in hop.figures:
        report.add(f"tokens_per_s.{name}", hop.spread(name))
    report.notes += [
        f"{tokens} greedy tokens after a prompt of {len(prompt)}; every system on core {last_core()}, alternating",
        f"GenAI ran the same INT4 weights as one model; compared is its {best} backend, which did better beside us",
    ]
    return report


def _measure_path(model: BenchModel, prompt: list[int], tokens: int, rounds: int) -> Rounds:
    directory, core = str(model.directory), last_core()
    monolith = str(export_monolith(model.directory, model.checkpoint, bench_cache()))
    with ExitStack() as stack:
        workers = {
            f"genai {backend}": stack.enter_context(Worker("bench.peers.genai", [monolith, backend], [core]))
            for backend in _GENAI
        }
        for engine in ("paged", "stateful"):
            arguments = [directory, str(core), "--engine", engine]
            workers[f"stage {engine}"] = stack.enter_context(Worker("bench.systems.whole_path", arguments, [core]))
        request = {"prompts": [prompt], "tokens": tokens}
        return alternate({name: rate(worker, request) for name, worker in workers.items()}, rounds)


def _measure_split(model: BenchModel, prompt: list[int], tokens: int, rounds: int) -> Rounds:
    request = {"prompts": [prompt], "tokens": tokens}
    with Worker("bench.systems.split", [str(model.directory), "paged"], [last_core()]) as worker:
        systems = {str(stages): rate(worker, {**request, "stages": stages}) for stages in (1, 2, 3)}
        for fused in (True, False):
            name = "beam_idx" if fused else "no beam_idx"
            systems[name] = rate(worker, {**request, "beam_idx": fused})
        return alternate(systems, rounds)
