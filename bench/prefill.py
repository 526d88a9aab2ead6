"""A long prompt: its chunks follow each other through two nodes, against one node; and what another user feels of it.

`ttft_speedup`: time to first token on one node over that on two. `itl_p99_growth_over_chunk`: by how much the times
between another user's tokens grow on the two nodes while the prompt is computed (99th percentile), over the time that a
prompt of one chunk takes there alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

from bench.latency import gaps, percentile, ttft
from bench.measure import Spread, alternate
from bench.models import smollm2
from bench.report import Report
from bench.workers import Message, Worker, two_cores
from shoal.manifest import read_manifest
from shoal_router.step_loop import StepLoopSettings

TITLE = "a prompt of 1,500 tokens on two nodes: time to first token, and what another user feels of it"

PROMPT = 1500
CHUNK = StepLoopSettings().prefill_chunk
_BEFORE, _SPOKEN = 40, 120
"""Tokens that the other user has when the prompt comes, and those asked for."""


def run(quick: bool) -> Report:
    """Measure; `quick` takes one round."""
    model, cores = smollm2(), two_cores()
    shape = read_manifest(model.directory).shape
    prompts = random_prompts(shape.vocab_size)
    report = Report()
    with ExitStack() as stack:

        def worker(placed: list[int], *options: str) -> Worker:
            arguments = [str(model.directory), ",".join(map(str, placed)), "--no-prefix-cache", *options]
            return stack.enter_context(Worker("bench.systems.whole_path", arguments, placed))

        half = shape.layers // 2
        one, planned = worker(cores[1:]), worker(cores)
        two = worker(cores, "--layers", f"{half},{shape.layers - half}")
        company = _Company(two, prompts)
        systems = {
            "one": _ttft(one, prompts, PROMPT),
            "two": _ttft(two, prompts, PROMPT),
            "planned": _ttft(planned, prompts, PROMPT),
            "chunk": _ttft(two, prompts, CHUNK),
            "growth": company.growth,
        }
        measured = alternate(systems, 1 if quick else 5)
    report.add("ttft_speedup", measured.ratio("one", "two"))
    report.add("ttft_speedup_planned", measured.ratio("one", "planned"))
    report.add("itl_p99_growth_over_chunk", measured.ratio("growth", "chunk"))
    for key, system in (("ttft_ms.1 node", "one"), ("ttft_ms.2 nodes", "two"), ("chunk_ms.2 nodes", "chunk")):
        report.add(key, measured.spread(system).over(1e-3))
    report.add("itl_p99_ms.alone", Spread.of(company.alone[1:]).over(1e-3))
    report.add("itl_p99_ms.meanwhile", Spread.of(company.meanwhile[1:]).over(1e-3))
    report.notes += [
        "the two nodes have half of the layers each (manual ranges); `planned`: as the planner cuts, who weighs the "
        "head with what it costs in a step of single tokens, while a prompt has it computed once",
        f"prompts of {PROMPT} random tokens in chunks of {CHUNK}, no prefix cache, cores {cores}, router on the same",
        f"the other user has {_BEFORE} tokens when the prompt comes; few more come meanwhile, so that the 99th "
        "percentile is the longest wait of a round",
    ]
    return report


def random_prompts(vocabulary: int, seed: int = 4) -> Callable[[int], list[int]]:
    """Prompts of random ids, each another one: no cache of any kind can know them."""
    rng = random.Random(seed)
    return lambda length: [rng.randrange(vocabulary) for _ in range(length)]


def _ttft(worker: Worker, prompts: Callable[[int], list[int]], length: int) -> Callable[[], float]:
    return lambda: ttft(worker.ask({"prompts": [prompts(length)], "tokens": 1}))[0]


class _Company:
    """Another user, in mid-answer when the long prompt comes. Keeps each round's figures, warm-up first."""

    def __init__(self, worker: Worker, prompts: Callable[[int], list[int]]) -> None:
        self._worker = worker
        self._prompts = prompts
        self.alone: list[float] = []
        self.meanwhile: list[float] = []

    def growth(self) -> float:
        """Seconds by which the 99th percentile of the other user's waits grows."""
        prompts = [self._prompts(20), self._prompts(PROMPT)]
        reply = self._worker.ask({"prompts": prompts, "tokens": [_SPOKEN, 1], "after": _BEFORE})
        before, during = apart(reply)
        self.alone.append(percentile(before, 99))
        self.meanwhile.append(percentile(during, 99))
        return self.meanwhile[-1] - self.alone[-1]


def apart(reply: Message) -> tuple[list[float], list[float]]:
    """The first user's waits before the second prompt was sent, and those that lay in its time to first token."""
    sent, first = reply["sent_s"][1], reply["arrivals_s"][1][0]
    ends = reply["arrivals_s"][0][1:]
    waits = list(zip(gaps(reply, 0), ends, strict=True))
    return (
        [wait for wait, end in waits if end <= sent],
        [wait for wait, end in waits if end > sent and end - wait < first],
    )
