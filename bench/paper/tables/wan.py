"""Three stages behind slow hops: gain by delay and K."""

from __future__ import annotations

from contextlib import ExitStack

from bench.paper.rates import Rates
from bench.paper.systems import CORES, FIXTURE, KV, PLAIN, fixed, fixtures
from bench.paper.table import Entry, Line, Picture, Table
from bench.report import Report

_DRAFTS = (3, 5, 10)
_NAIVE = {0: 21.55, 50: 4.77, 100: 2.77}
_PAPER = {
    3: ({0: 26.77, 50: 11.54, 100: 7.31}, 0.707),
    5: ({0: 30.42, 50: 14.05, 100: 9.28}, 0.671),
    10: ({0: 28.04, 50: 16.04, 100: 11.30}, 0.525),
}
_TWO_STREAMS = 14.97
_FARTHEST = max(_NAIVE)


def _measure(table: Table, quick: bool) -> Report:
    systems = fixtures()
    one, two = systems.prompts(1), systems.prompts(2)
    rates = Rates(8 if quick else 32)
    with ExitStack() as stack:
        paper = systems.paper_ring(stack, 3, "--delay-ms", "1")
        shoal = systems.shoal_ring(stack, 3, "--delay-ms", str(_FARTHEST))
        for delay in (_FARTHEST,) if quick else _NAIVE:
            rates.add(f"naive, {delay} ms", paper, one, **PLAIN, delay_ms=delay)
            for count in _DRAFTS:
                rates.add(f"K={count}, {delay} ms", paper, one, **fixed(count), delay_ms=delay)
        rates.add("K=10, 2 streams", paper, two, **fixed(10), delay_ms=_FARTHEST)
        rates.add("shoal, 1 stream", shoal, one, learns=True)
        rates.add("shoal, 2 streams", shoal, two, learns=True)
        return rates.report(table, rates.measure(1 if quick else 2))


WAN = Table(
    name="wan",
    title="Three stages behind slow hops, by delay and K",
    source="tables k_sweep and progression_3stage",
    text=(
        "One stream over the naive pipeline (no drafts, one step in flight) at the same delay, by the milliseconds "
        "that each hop takes one way; then two streams and shoal's own way at 100 ms, over one stream of the naive "
        "pipeline."
    ),
    entries=(
        *(
            Entry.of_rates(
                f"{delay} ms, K = {count}",
                f"K={count}, {delay} ms",
                f"naive, {delay} ms",
                paper=_PAPER[count][0][delay],
                paper_over=_NAIVE[delay],
                accepted=_PAPER[count][1],
            )
            for delay in _NAIVE
            for count in _DRAFTS
        ),
        Entry.of_rates(
            f"{_FARTHEST} ms, K = 10, 2 streams",
            "K=10, 2 streams",
            f"naive, {_FARTHEST} ms",
            paper=_TWO_STREAMS,
            paper_over=_NAIVE[_FARTHEST],
            accepted=0.525,
        ),
        Entry.of_rates(f"{_FARTHEST} ms, shoal, 1 stream", "shoal, 1 stream", f"naive, {_FARTHEST} ms"),
        Entry.of_rates(f"{_FARTHEST} ms, shoal, 2 streams", "shoal, 2 streams", f"naive, {_FARTHEST} ms"),
        Entry.of_rates("shoal ÷ the paper's way at K = 10, 1 stream", "shoal, 1 stream", f"K=10, {_FARTHEST} ms"),
        Entry.of_rates("shoal ÷ the paper's way at K = 10, 2 streams", "shoal, 2 streams", "K=10, 2 streams"),
    ),
    differs=(
        FIXTURE,
        CORES,
        KV,
        "A token pays four delays here: to each of the three stages and back to the router. In the paper the first "
        "stage is the coordinator's own, and workers sleep before and after each message; here a TCP relay stands "
        "before each stage (bench.relay).",
        "The paper's two streams at 100 ms and its sweep by K are of different days.",
    ),
    measure=_measure,
    picture=Picture(
        "gain over the naive pipeline behind slow hops",
        "K",
        tuple(
            Line(f"{delay} ms a hop", {count: f"K={count}, {delay} ms over naive, {delay} ms" for count in _DRAFTS})
            for delay in _NAIVE
        ),
        {
            f"shoal, {streams}, {_FARTHEST} ms": f"shoal, {streams} over naive, {_FARTHEST} ms"
            for streams in ("1 stream", "2 streams")
        },
    ),
)
