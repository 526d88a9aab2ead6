"""From replies to figures: waits, percentiles, cuts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.hop import hop_bytes
from bench.latency import Latencies, gaps, percentile, ttft
from bench.measure import Spread, alternate
from bench.prefill import apart, random_prompts
from bench.report import Report
from bench.systems.cut import cut_blocks, even_steps
from bench.systems.hop import blocks_of, manifest_of
from shoal_stage.engine.fake import fake_manifest

REPLY = {
    "seconds": 4.0,
    "answers": [[1, 2, 3, 4], [5]],
    "sent_s": [0.0, 1.5],
    "arrivals_s": [[0.5, 1.0, 2.0, 3.5], [2.5]],
}


class _Replies:
    """A worker whose answers are known."""

    def __init__(self, *replies):
        self._replies = iter(replies)

    def ask(self, request):
        return next(self._replies)


def test_first_token_counts_from_sending_and_gaps_between_tokens():
    assert ttft(REPLY) == [0.5, 1.0]
    assert gaps(REPLY, 0) == [0.5, 1.0, 1.5]
    assert gaps(REPLY, 1) == []


def test_waits_are_those_that_lie_in_the_other_prompts_time():
    # Waits end at 1.0, 2.0 and 3.5; the second prompt was sent at 1.5 and had its first token at 2.5.
    assert apart(REPLY) == ([0.5], [1.0, 1.5])


def test_a_percentile_is_a_value_that_was_measured():
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(number) for number in range(1, 101)], 99) == 99.0


def test_the_warm_up_is_not_reported():
    slow = {**REPLY, "arrivals_s": [[9.0, 18.0, 27.0, 36.0], [9.0]]}
    latencies = Latencies()
    rate = latencies.rate("x", _Replies(slow, REPLY), {})
    assert [rate(), rate()] == [1.25, 1.25]
    report = Report()
    latencies.add_to(report, "deep.")
    assert report.results["deep.ttft_p99_ms.x"] == 1000.0
    assert report.results["deep.itl_p50_ms.x"] == 1000.0


def test_a_spread_divided():
    assert Spread(2.0, 1.0, 4.0).over(2.0) == Spread(1.0, 0.5, 2.0)


@pytest.mark.parametrize(("layers", "expected"), [((), [(0, 3), (3, 6)]), ((1, 3), [(0, 2), (2, 6)])])
def test_cuts_are_the_planners_or_by_hand(layers, expected):
    assert cut_blocks(fake_manifest(layers=4), 2, layers) == expected


def test_a_head_counts_as_layers():
    assert even_steps(30, 7) == (18, 12)
    assert even_steps(30, 0) == (15, 15)


def test_rings_of_hops_hold_every_block_once():
    for stages in (1, 2, 3):
        blocks = len(manifest_of(576, stages).blocks)
        ranges = [blocks_of(index, stages) for index in range(stages)]
        assert [number for start, end in ranges for number in range(start, end)] == list(range(blocks))


def test_bytes_of_a_hop_are_little_more_than_the_hidden_state():
    for width, rows in ((576, 1), (4096, 16)):
        assert 2 * width * rows < hop_bytes(width, rows) < 2 * width * rows + 90 * rows


def test_prompts_are_never_the_same_twice():
    prompts = random_prompts(1000)
    assert prompts(20) != prompts(20)
    assert max(prompts(500)) < 1000


def test_mirrored_rounds_go_backwards_every_second_time() -> None:
    order: list[str] = []

    def measure(name: str) -> Callable[[], float]:
        def figure() -> float:
            order.append(name)
            return float(len(order))

        return figure

    measured = alternate({name: measure(name) for name in "abc"}, 2, mirrored=True)

    assert "".join(order) == "abccbaabc"
    assert measured.figures == {"a": [6.0, 7.0], "b": [5.0, 8.0], "c": [4.0, 9.0]}
