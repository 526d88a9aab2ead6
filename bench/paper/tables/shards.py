"""One node without drafts: the stateful graph with and without its Gather, cut and uncut, against OpenVINO GenAI."""

from __future__ import annotations

from contextlib import ExitStack

from bench.models import bench_cache, smollm2
from bench.paper.rates import Rates
from bench.paper.table import Entry, Picture, Table
from bench.peers.genai import export_monolith
from bench.report import Report
from bench.workers import Worker, last_core
from shoal_router.text.model import load_text_model

_PROMPT = "Explain in a few sentences why fish swim in shoals."
_STAGES = {1: "one stage", 2: "two stages", 3: "three stages"}


def _measure(table: Table, quick: bool) -> Report:
    model, core = smollm2(), last_core()
    prompt = list(load_text_model(model.directory).encode(_PROMPT, add_special_tokens=False))
    monolith = export_monolith(model.directory, model.checkpoint, bench_cache())
    rates = Rates(8 if quick else 48)
    with ExitStack() as stack:
        genai = stack.enter_context(Worker("bench.peers.genai", [str(monolith), "SDPA"], [core]))
        split = stack.enter_context(Worker("bench.systems.split", [str(model.directory), "stateful"], [core]))
        rates.add("GenAI", genai, [prompt])
        rates.add("loop", split, [prompt], beam_idx=True)
        rates.add("loop without Gather", split, [prompt], beam_idx=False)
        for stages, name in _STAGES.items():
            rates.add(name, split, [prompt], stages=stages)
        return rates.report(table, rates.measure(1 if quick else 9))


SHARDS = Table(
    name="shards",
    title="One node without drafts: beam_idx, and the cost of cutting",
    source="tables shard_parity and shard_stages",
    text=(
        "The stateful graph in a Python loop with and without the Gather by `beam_idx` between each state and its use, "
        "against OpenVINO GenAI's loop in C++ (its SDPA backend, which is the stateful one); then the stateful engine "
        "cut into stages within one process."
    ),
    entries=(
        Entry.of_rates("Python loop ÷ GenAI", "loop", "GenAI", paper=23.12, paper_over=24.54),
        Entry.of_rates("without ÷ with `beam_idx`", "loop without Gather", "loop", paper=21.26, paper_over=24.45),
        Entry.of_rates("one stage ÷ GenAI", "one stage", "GenAI", paper=24.45, paper_over=24.54),
        Entry.of_rates("two stages ÷ one", "two stages", "one stage", paper=20.56, paper_over=23.93),
        Entry.of_rates("three stages ÷ one", "three stages", "one stage", paper=21.56, paper_over=23.93),
    ),
    differs=(
        "SmolLM2-135M in INT4 on one core for Llama 3.1 8B in INT4 on a GPU: what `beam_idx` unlocks here is the CPU "
        "plugin's fusion of attention with its state, there the GPU plugin's.",
    ),
    measure=_measure,
    picture=Picture("one node, no drafts"),
)
