"""Three nodes on two cores: two and three streams by K."""

from __future__ import annotations

from contextlib import ExitStack

from bench.paper.rates import Rates
from bench.paper.systems import CORES, FIXTURE, KV, PLAIN, fixed, fixtures
from bench.paper.table import Entry, Picture, Table
from bench.report import Report

_MONO, _ONE = 24.54, 12.53
_TWO = {3: (51.60, 0.707), 5: (50.55, 0.671), 10: (45.34, 0.525)}
_THREE = (64.67, 0.671)


def _measure(table: Table, quick: bool) -> Report:
    systems = fixtures()
    rates = Rates(8 if quick else 24)
    prompts = {users: systems.prompts(users) for users in (1, 2, 3)}
    with ExitStack() as stack:
        unsplit = systems.unsplit(stack)
        paper, shoal = systems.paper_ring(stack, 3), systems.shoal_ring(stack, 3)
        rates.add("unsplit", unsplit, prompts[1])
        for users in (1, 2, 3):
            rates.add(f"plain, {users}", paper, prompts[users], **PLAIN)
            rates.add(f"shoal, {users}", shoal, prompts[users], learns=True)
        for count in _TWO:
            rates.add(f"K={count}, 2", paper, prompts[2], **fixed(count))
        rates.add("K=5, 3", paper, prompts[3], **fixed(5))
        return rates.report(table, rates.measure(1 if quick else 2))


THREE_NODES = Table(
    name="three-nodes",
    title="Three nodes, two and three streams by K",
    source="tables progression_3stage and real_wan",
    text="All users together, over one user of the unsplit model on one core.",
    entries=(
        Entry.of_rates("1 stream", "plain, 1", "unsplit", paper=_ONE, paper_over=_MONO),
        Entry.of_rates("2 streams", "plain, 2", "unsplit"),
        Entry.of_rates("3 streams", "plain, 3", "unsplit"),
        *(
            Entry.of_rates(
                f"2 streams, K = {count}", f"K={count}, 2", "unsplit", paper=rate, paper_over=_MONO, accepted=accepted
            )
            for count, (rate, accepted) in _TWO.items()
        ),
        Entry.of_rates("3 streams, K = 5", "K=5, 3", "unsplit", paper=_THREE[0], paper_over=_MONO, accepted=_THREE[1]),
        *(
            Entry.of_rates(f"shoal, {users} stream{'s' * (users > 1)}", f"shoal, {users}", "unsplit")
            for users in (1, 2, 3)
        ),
    ),
    differs=(
        FIXTURE,
        CORES,
        "Three nodes have two cores here: the first and the third stage share one. More than twice the unsplit model "
        "can come from drafts only.",
        "The paper's one stream on three nodes went through its latency proxies, at 0 ms.",
        KV,
    ),
    measure=_measure,
    picture=Picture("three nodes over the unsplit model"),
)
