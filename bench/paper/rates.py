"""Systems in turn, as bench.measure does it, with the shares of drafts that were accepted: what most tables need.

Every round asks all systems for the same prompts and no round repeats those of an earlier one. The first call of each
system is not counted. It makes few tokens, so that nothing is computed for the first time later; of a system that
learns what pays it makes as many as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.measure import Rounds, Spread, alternate
from bench.paper.table import Table, accepted_key, rate_key
from bench.prompts import turned
from bench.report import Report
from bench.workers import Message, Worker

_WARM_UP_TOKENS = 8
_DEADLINE_SECONDS = 600


class Rates:
    """Rates of named systems. `tokens`: of each answer."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._systems: dict[str, Callable[[], float]] = {}
        self._replies: dict[str, list[Message]] = {}

    def add(
        self, name: str, worker: Worker, prompts: Sequence[list[int]], *, learns: bool = False, **request: Any
    ) -> None:
        """A system: a worker that is asked for these prompts at once, with what else its request says."""
        warm_up = self._tokens if learns else min(self._tokens, _WARM_UP_TOKENS)
        replies = self._replies.setdefault(name, [])

        def tokens_per_second() -> float:
            tokens = self._tokens if replies else warm_up
            asked = [turned(prompt, len(replies)) for prompt in prompts]
            reply = worker.ask({"prompts": asked, "tokens": tokens, **request}, _DEADLINE_SECONDS)
            replies.append(reply)
            return sum(map(len, reply["answers"])) / float(reply["seconds"])

        self._systems[name] = tokens_per_second

    def measure(self, rounds: int) -> Rounds:
        """All systems in turn."""
        return alternate(self._systems, rounds)

    def counted(self, name: str) -> list[Message]:
        """The replies of a system, those of the warm-up left out."""
        return self._replies[name][1:]

    def chance(self, name: str) -> float:
        """How often a draft of this system was right, of those whose predecessors were."""
        counts: list[list[int]] = [count for reply in self.counted(name) for count in reply["drafts"].values()]
        return sum(right for _, right in counts) / max(sum(judged for judged, _ in counts), 1)

    def report(self, table: Table, measured: Rounds) -> Report:
        """The ratios that the table's entries name, and each system's rate and accepted drafts."""
        report = Report()
        for entry in table.entries:
            if entry.system in self._systems and entry.over in self._systems:
                report.add(entry.key, measured.ratio(entry.system, entry.over))
        for name in self._replies:
            report.add(rate_key(name), measured.spread(name))
            if (share := accepted(self.counted(name))) is not None:
                report.add(accepted_key(name), share)
        rounds = len(next(iter(measured.figures.values())))
        report.notes.append(f"{rounds} round{'s' * (rounds > 1)} of {self._tokens} greedy tokens each")
        return report


def accepted(replies: Sequence[Message]) -> Spread | None:
    """Accepted drafts over all that were sent, by round; None without any. Of several sources their sum."""
    shares = []
    for reply in replies:
        sent = sum(reply.get("proposed", {}).values())
        if sent:
            shares.append(sum(right for _, right in reply["drafts"].values()) / sent)
    return Spread.of(shares) if shares else None


def mean_ratio(measured: Rounds, pairs: Sequence[tuple[str, str]]) -> Spread:
    """The mean of several ratios, round by round."""
    rounds = zip(
        *([one / over for one, over in zip(measured.figures[a], measured.figures[b], strict=True)] for a, b in pairs),
        strict=True,
    )
    return Spread.of([sum(ratios) / len(ratios) for ratios in rounds])
