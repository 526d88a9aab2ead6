"""Two nodes: one and two streams, with and without drafts."""

from __future__ import annotations

from contextlib import ExitStack

from bench.paper.rates import Rates
from bench.paper.systems import CORES, FIXTURE, KV, PLAIN, fixed, fixtures
from bench.paper.table import Entry, Picture, Table
from bench.report import Report

_MONO, _ONE, _TWO, _ALL = 24.54, 16.33, 29.34, 43.97
_ACCEPTED = 0.707


def _measure(table: Table, quick: bool) -> Report:
    systems = fixtures()
    rates = Rates(8 if quick else 40)
    one, two = systems.prompts(1), systems.prompts(2)
    with ExitStack() as stack:
        unsplit = systems.unsplit(stack)
        paper, shoal = systems.paper_ring(stack, 2), systems.shoal_ring(stack, 2)
        rates.add("unsplit", unsplit, one)
        for users, prompts in ((1, one), (2, two)):
            rates.add(f"plain, {users}", paper, prompts, **PLAIN)
            rates.add(f"shoal, {users}", shoal, prompts, learns=True)
        for users, prompts in ((1, one), (2, two)):
            rates.add(f"K=3, {users}", paper, prompts, **fixed(3))
        return rates.report(table, rates.measure(1 if quick else 3))


TWO_NODES = Table(
    name="two-nodes",
    title="Two nodes, one and two streams, with and without drafts",
    source="tables progression and microbatch",
    text="All users together. `K = 3` is the paper's way, `shoal` is `mode: Auto` with the same draft model.",
    entries=(
        Entry.of_rates("1 stream ÷ unsplit model", "plain, 1", "unsplit", paper=_ONE, paper_over=_MONO),
        Entry.of_rates("2 streams ÷ 1 stream", "plain, 2", "plain, 1", paper=_TWO, paper_over=_ONE),
        Entry.of_rates("1 stream, K = 3 ÷ 1 stream", "K=3, 1", "plain, 1"),
        Entry.of_rates(
            "2 streams, K = 3 ÷ 1 stream", "K=3, 2", "plain, 1", paper=_ALL, paper_over=_ONE, accepted=_ACCEPTED
        ),
        Entry.of_rates(
            "2 streams, K = 3 ÷ unsplit model", "K=3, 2", "unsplit", paper=_ALL, paper_over=_MONO, accepted=_ACCEPTED
        ),
        Entry.of_rates("shoal, 1 stream ÷ 1 stream", "shoal, 1", "plain, 1"),
        Entry.of_rates("shoal, 2 streams ÷ 1 stream", "shoal, 2", "plain, 1"),
        Entry.of_rates("shoal, 2 streams ÷ unsplit model", "shoal, 2", "unsplit"),
        Entry.of_rates("shoal ÷ the paper's way, 1 stream", "shoal, 1", "K=3, 1"),
        Entry.of_rates("shoal ÷ the paper's way, 2 streams", "shoal, 2", "K=3, 2"),
    ),
    differs=(
        FIXTURE,
        CORES,
        KV,
        "Hops are the loopback's; a round trip takes the paper 6 to 6.5 ms.",
    ),
    measure=_measure,
    picture=Picture("two nodes"),
)
