"""Time to first token and time between tokens, collected beside the rates that a benchmark compares.

Replies of bench.systems.whole_path say when each prompt was sent and when each of its tokens came.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, pairwise

import numpy as np

from bench.report import Report
from bench.workers import Message, Worker


class Latencies:
    """What the counted rounds of each system said of single tokens."""

    def __init__(self, warmup: int = 1, *, decoding: bool = False) -> None:
        """With `decoding` rates leave the time to the first token out."""
        self._warmup = warmup
        self._decoding = decoding
        self._replies: dict[str, list[Message]] = {}

    def rate(self, name: str, worker: Worker, *requests: Message) -> Callable[[], float]:
        """A measure for bench.measure.alternate, as bench.workers.rate; the reply is kept under `name`.

        Of several requests each round, the warm-up included, asks the next one.
        """
        replies = self._replies.setdefault(name, [])
        turns = cycle(requests)

        def tokens_per_second() -> float:
            reply = worker.ask(next(turns))
            replies.append(reply)
            return decode_rate(reply) if self._decoding else sum(map(len, reply["answers"])) / float(reply["seconds"])

        return tokens_per_second

    def counted(self, name: str) -> list[Message]:
        """The replies of `name`, those of the warm-up left out."""
        return self._replies[name][self._warmup :]

    def add_to(self, report: Report, prefix: str = "") -> None:
        """Report the percentiles over all rounds and prompts, in milliseconds."""
        for name in self._replies:
            replies = self.counted(name)
            figures = {
                "ttft": [seconds for reply in replies for seconds in ttft(reply)],
                "itl": [gap for reply in replies for user in range(len(reply["answers"])) for gap in gaps(reply, user)],
            }
            for key, values in figures.items():
                report.add(f"{prefix}{key}_p50_ms.{name}", percentile(values, 50) * 1000)
                report.add(f"{prefix}{key}_p99_ms.{name}", percentile(values, 99) * 1000)


def decode_rate(reply: Message) -> float:
    """Tokens per second once the first is there, of all users together: what a draft can change."""
    return sum(
        (len(arrivals) - arrivals.count(arrivals[0])) / (arrivals[-1] - arrivals[0]) for arrivals in reply["arrivals_s"]
    )


def ttft(reply: Message) -> list[float]:
    """Seconds from sending to the first token, of each prompt."""
    return [arrivals[0] - sent for sent, arrivals in zip(reply["sent_s"], reply["arrivals_s"], strict=True)]


def gaps(reply: Message, user: int) -> list[float]:
    """Seconds between the tokens of one prompt."""
    return [later - earlier for earlier, later in pairwise(reply["arrivals_s"][user])]


def percentile(values: list[float], share: float) -> float:
    """The smallest of the values that is no smaller than `share` per cent of them: one that was measured."""
    return float(np.percentile(values, share, method="inverted_cdf"))
