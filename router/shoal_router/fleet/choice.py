"""Which pipeline a request goes to. Pure: the least work until its answer comes, in ids that must be computed first.

    work = ids of others that must be computed first
         + ids of its own that the prefix cache does not hold
         + what sharing the pipeline costs: a full one counts as FULL ids

So a second turn goes where its KV is, unless the way round costs more than computing it again: there others wait, or so
many run that the pipeline would be much slower for it. The cache is asked itself, so that nothing is remembered here
that an eviction or a lost pipeline would make untrue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FULL = 2048
"""Ids of a prompt that take as long as a pipeline's full house holds an answer up.

A row more makes a decode step about a twelfth longer (schedule/costs), which over an answer of some 200 ids is what
some 200 ids of a prompt cost; a full house is 8 to 16 rows.
"""


@dataclass(frozen=True, slots=True)
class Offer:
    """An open pipeline as one request sees it, in ids, and in sequences that run or wait and that may run at a time.

    `cached`: of the request's ids; `backlog`: of all others that are not computed yet.
    """

    max_context: int
    slots: int
    sequences: int
    backlog: int
    cached: int

    def work(self, tokens: int) -> float:
        """What lies before the first id of an answer to `tokens` ids, and the company that it will have."""
        return self.backlog + tokens - self.cached + FULL * self.sequences / self.slots


def limit_of(offers: Mapping[int, Offer], *, prompt: int, answer: int | None) -> int:
    """Most ids that prompt and answer will have together; `answer` None: up to the end of the context.

    That is the largest context there is, which is also what the API says the model has.
    """
    largest = max((offer.max_context for offer in offers.values()), default=0)
    return largest if answer is None else min(prompt + answer, largest)


def ranking(offers: Mapping[int, Offer], *, tokens: int, limit: int) -> list[int]:
    """The pipelines that can hold `limit` ids, the best for the `tokens` that there are first; of equals the first."""
    fitting = [number for number, offer in offers.items() if offer.max_context >= limit]
    return sorted(fitting, key=lambda number: (offers[number].work(tokens), number))
