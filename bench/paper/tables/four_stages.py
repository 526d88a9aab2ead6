"""Four stages behind a relay: what of the paper's 70B table can be had here, and what arithmetic makes of the rest."""

from __future__ import annotations

from contextlib import ExitStack

from bench.paper.arithmetic import PAPER_70B
from bench.paper.rates import Rates
from bench.paper.systems import FIXTURE, KV, PLAIN, fixed, fixtures
from bench.paper.table import Entry, Line, Picture, Table
from bench.report import Report

_STAGES, _DELAY_MS = 4, 8
_NAIVE = 1.40
_PAPER = {3: (3.40, 0.767), 5: (3.96, 0.754), 10: (4.69, 0.653), 15: (4.29, 0.514)}
_TWO_STREAMS, _NAIVE_THEN = 6.43, 1.74


def _computed(count: int) -> str:
    return f"K={count} computed"


def _measure(table: Table, quick: bool) -> Report:
    systems = fixtures()
    one, two = systems.prompts(1), systems.prompts(2)
    rates = Rates(8 if quick else 32)
    with ExitStack() as stack:
        paper = systems.paper_ring(stack, _STAGES, "--delay-ms", str(_DELAY_MS))
        shoal = systems.shoal_ring(stack, _STAGES, "--delay-ms", str(_DELAY_MS))
        rates.add("naive", paper, one, **PLAIN)
        for count in _PAPER:
            rates.add(f"K={count}", paper, one, **fixed(count))
        rates.add("K=10, 2 streams", paper, two, **fixed(10))
        rates.add("shoal, 1 stream", shoal, one, learns=True)
        rates.add("shoal, 2 streams", shoal, two, learns=True)
        report = rates.report(table, rates.measure(1 if quick else 2))
    for count in _PAPER:
        report.add(_computed(count), PAPER_70B.gain(rates.chance(f"K={count}"), count))
    return report


FOUR_STAGES = Table(
    name="four-stages",
    title="Four stages behind a relay, in the shape of the 70B table",
    source="table llama70b",
    text=(
        f"Four stages, {_DELAY_MS} ms one way on every hop, over one stream without drafts. `computed`: synchronous "
        "speculation by arithmetic (bench.paper.arithmetic) with the 70B's times and the acceptance that was measured "
        "here, since no fixture on two cores has a 70B's proportions."
    ),
    entries=(
        *(
            Entry.of_rates(f"K = {count}", f"K={count}", "naive", paper=rate, paper_over=_NAIVE, accepted=accepted)
            for count, (rate, accepted) in _PAPER.items()
        ),
        *(
            Entry(f"K = {count}, computed for the 70B", _computed(count), paper=rate / _NAIVE)
            for count, (rate, _) in _PAPER.items()
        ),
        Entry.of_rates(
            "K = 10, 2 streams",
            "K=10, 2 streams",
            "naive",
            paper=_TWO_STREAMS,
            paper_over=_NAIVE_THEN,
            accepted=0.52,
        ),
        Entry.of_rates("shoal, 1 stream", "shoal, 1 stream", "naive"),
        Entry.of_rates("shoal, 2 streams", "shoal, 2 streams", "naive"),
    ),
    differs=(
        FIXTURE,
        "The paper verifies with a model seventy times the draft model's size, on a PC for each stage, so that drafts "
        "are nearly free; here a draft takes a seventh of a verification, and four stages share two cores with it.",
        "The paper's hops lead through a public relay, whose queues grow with each segment; here every hop takes 8 ms.",
        "The paper's two streams were measured on an earlier day (over 1.74 tokens a second) and could not be repeated "
        "by its authors.",
        KV,
    ),
    measure=_measure,
    picture=Picture(
        "four stages: gain by K",
        "K",
        (
            Line("measured", {count: f"K={count} over naive" for count in _PAPER}),
            Line("computed for the 70B", {count: _computed(count) for count in _PAPER}),
        ),
        {f"shoal, {streams}": f"shoal, {streams} over naive" for streams in ("1 stream", "2 streams")},
    ),
)
