"""Two prompts with a common beginning: the second one finds it in the prefix cache.

`ttft_ratio`: time to first token of the second over that of the first, on two nodes.
"""

from __future__ import annotations

from bench.latency import ttft
from bench.measure import alternate
from bench.models import smollm2
from bench.prefill import random_prompts
from bench.report import Report
from bench.workers import Worker, two_cores
from shoal.manifest import read_manifest

TITLE = "the second of two prompts with a common beginning of 1,000 tokens: time to first token"

SHARED, OWN = 1000, 40


def run(quick: bool) -> Report:
    """Measure; `quick` takes one round."""
    model, cores = smollm2(), two_cores()
    prompts = random_prompts(read_manifest(model.directory).shape.vocab_size)
    report = Report()
    shared: list[int] = []
    arguments = [str(model.directory), ",".join(map(str, cores))]
    with Worker("bench.systems.whole_path", arguments, cores) as worker:

        def ask() -> float:
            return ttft(worker.ask({"prompts": [shared + prompts(OWN)], "tokens": 1}))[0]

        def first() -> float:
            shared[:] = prompts(SHARED)
            return ask()

        measured = alternate({"first": first, "second": ask}, 1 if quick else 5)
    report.add("ttft_ratio", measured.ratio("second", "first"))
    for name in ("first", "second"):
        report.add(f"ttft_ms.{name}", measured.spread(name).over(1e-3))
    report.notes.append(
        f"{SHARED} random tokens in common, {OWN} of its own for each prompt; two nodes on cores {cores}; the least "
        f"possible is {OWN / (SHARED + OWN):.2f} if every token costs the same"
    )
    return report
