"""One node with drafts: by how many, and by kind of prompt."""

from __future__ import annotations

from contextlib import ExitStack

from bench.paper.rates import Rates, mean_ratio
from bench.paper.systems import FIXTURE, KV, PLAIN, fixed, fixtures
from bench.paper.table import Entry, Line, Picture, Table
from bench.prompts import KINDS
from bench.report import Report

_DRAFTS = (1, 3, 5, 7)
_PAPER = {
    "story": (26.09, 23.51, 0.497),
    "explanation": (28.52, 23.87, 0.624),
    "code": (33.10, 22.08, 0.931),
    "list": (27.91, 21.37, 0.746),
}
"""With three drafts, without, accepted: the paper's creative, technical-expl, code-completion and list-enumeration."""


def _mean(system: str) -> str:
    return f"{system} over plain, mean of kinds"


def _measure(table: Table, quick: bool) -> Report:
    systems = fixtures()
    drafts = _DRAFTS[1:2] if quick else _DRAFTS
    rates = Rates(8 if quick else 24)
    with ExitStack() as stack:
        core = systems.cores[1:]
        paper = systems.paper_ring(stack, 1, cores=core)
        shoal = systems.shoal_ring(stack, 1, cores=core)
        for kind, prompt in systems.kinds().items():
            rates.add(f"plain, {kind}", paper, [prompt], **PLAIN)
            rates.add(f"shoal, {kind}", shoal, [prompt], learns=True)
        for count in drafts:
            for kind, prompt in systems.kinds().items():
                rates.add(f"K={count}, {kind}", paper, [prompt], **fixed(count))
        measured = rates.measure(1 if quick else 2)
    report = rates.report(table, measured)
    for system in (*(f"K={count}" for count in drafts), "shoal"):
        pairs = [(f"{system}, {kind}", f"plain, {kind}") for kind in KINDS]
        report.add(_mean(system), mean_ratio(measured, pairs))
    return report


ONE_NODE = Table(
    name="one-node",
    title="One node with drafts: by K and by kind of prompt",
    source="tables spec_lan and spec_shard",
    text=(
        "One stage, one user, everything on one core, over the same without drafts. `K = …` is the paper's way "
        "(bench.paper.systems), `shoal` is `mode: Auto` with the same draft model."
    ),
    entries=(
        *(
            Entry.of_rates(
                f"K = 3, {kind}",
                f"K=3, {kind}",
                f"plain, {kind}",
                paper=_PAPER[kind][0],
                paper_over=_PAPER[kind][1],
                accepted=_PAPER[kind][2],
            )
            for kind in KINDS
        ),
        *(Entry.of_rates(f"shoal, {kind}", f"shoal, {kind}", f"plain, {kind}") for kind in KINDS),
        *(
            Entry(f"K = {count}, mean of the kinds", _mean(f"K={count}"), paper=1.33 if count == 3 else None)
            for count in _DRAFTS
        ),
        Entry("shoal, mean of the kinds", _mean("shoal")),
    ),
    differs=(
        FIXTURE,
        KV,
        "The paper's mean is of eight kinds of prompts. Its long answers (1.58 × at 2,048 tokens) are not repeated "
        "here: they would take longer than the rest of this page.",
        "A further token of a verification costs a core more than the paper's GPU, which waits for memory.",
    ),
    measure=_measure,
    picture=Picture(
        "one node with drafts: gain by K",
        "K",
        (Line("mean of the kinds", {count: _mean(f"K={count}") for count in _DRAFTS}),),
        {"shoal, mean of the kinds": _mean("shoal")},
    ),
)
