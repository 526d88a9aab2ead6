"""One generation as the scheduler sees it.

There are no phases: `num_computed` (positions sent to the stages) catches up with the number of committed ids.
A whole prompt missing is prefill, a part of it chunked prefill, one id decode; a preempted or replayed sequence
is prefill again, of prompt and answer so far. This is vLLM v1's formulation (its NOTE in `schedule()`).

With speculation `num_computed` runs ahead of the committed ids, over guesses. A guess is confirmed when the id that is
committed in its place equals it; at the first that does not, everything in flight is stale: the version grows, and the
next row starts at the last committed id again. That row's lower `past_len` is all that the stages hear of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import NamedTuple

from shoal.wire.messages import SamplingParams, SequenceStart
from shoal_router.generation import FinishReason


class SequenceState(Enum):
    """WAITING holds no KV memory, RUNNING does, OVER keeps it only until its last frame is back."""

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"


class Guess(NamedTuple):
    """A drafted id: the `position`-th of its draft, with the source's `confidence` and what was made of it."""

    token: int
    source: str
    position: int
    confidence: float
    estimate: float


@dataclass(slots=True, eq=False)
class Sequence:
    """Invariants: `acknowledged <= num_computed < limit`, since the id before the limit is drawn and not fed;
    `acknowledged < len(tokens) <= limit`; `guesses` are the ids that were sent behind the committed ones:
    `num_computed == len(tokens) + len(guesses)` whenever there are any. `awaited` counts the rows in flight that draw,
    of the current version; `in_flight` those of every version, and memory goes back only when it is 0. `due`: when the
    last row is likely back; `held`: since when the next one has waited for drafts.
    """

    id: int
    prompt_len: int
    tokens: list[int]
    params: SamplingParams
    limit: int
    stop_token_ids: frozenset[int]
    group: str = ""
    request_id: str = ""
    trace: str = ""
    state: SequenceState = SequenceState.WAITING
    version: int = 0
    num_computed: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    awaited: int = 0
    guesses: deque[Guess] = field(default_factory=deque)
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    published: int = 0
    introduced: bool = False
    cached_tokens: int = 0
    begun: bool = False
    admitted: float = 0.0
    due: float = 0.0
    held: float | None = None

    @property
    def remaining(self) -> int:
        """Committed ids that were not yet sent to the stages; negative behind guesses that were."""
        return len(self.tokens) - self.num_computed

    @property
    def room(self) -> int:
        """How many more guesses may be sent: the id at the limit is drawn behind them."""
        return self.limit - 1 - len(self.tokens) - len(self.guesses)

    @property
    def survival(self) -> float:
        """The chance that every guess in flight is right."""
        return prod(guess.estimate for guess in self.guesses)

    def introduction(self) -> SequenceStart:
        """What the stages must know with the first row since admission."""
        self.introduced = True
        known = tuple(self.tokens[: self.num_computed])
        return SequenceStart(self.params, self.prompt_len, known, self.request_id, self.trace)

    def commit(self, token: int) -> FinishReason | None:
        """Append a drawn id; says whether it ends the sequence."""
        self.tokens.append(token)
        if token in self.stop_token_ids:
            return FinishReason.STOP
        if len(self.tokens) >= self.limit:
            return FinishReason.LENGTH
        return None

    def diverge(self) -> None:
        """The truth is another than was guessed: go on behind the last committed id. Rows in flight are stale now."""
        self.version += 1
        self.awaited = 0
        self.guesses.clear()
        self.num_computed = len(self.tokens) - 1

    def forget_computed(self) -> None:
        """Nothing is computed any more. Frames still in flight belong to an older version and will be ignored."""
        self.version += 1
        self.num_computed = self.acknowledged = self.published = self.awaited = 0
        self.guesses.clear()
        self.introduced = False
        self.slot = -1

    def moved(self) -> Sequence:
        """The same generation for another pipeline: what was drawn stays drawn, what was computed must be computed."""
        return Sequence(
            id=self.id,
            prompt_len=self.prompt_len,
            tokens=list(self.tokens),
            params=self.params,
            limit=self.limit,
            stop_token_ids=self.stop_token_ids,
            group=self.group,
            request_id=self.request_id,
            trace=self.trace,
            version=self.version + 1,
            cached_tokens=self.cached_tokens,
            begun=self.begun,
            admitted=self.admitted,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError when an invariant does not hold."""
        name = f"sequence {self.id}"
        assert self.acknowledged <= self.num_computed < self.limit, name
        assert self.acknowledged < len(self.tokens) <= self.limit, name
        if self.state is SequenceState.RUNNING:
            assert len(self.guesses) == max(self.num_computed - len(self.tokens), 0), (
                f"{name} lost count of its guesses"
            )
            assert self.num_computed < len(self.tokens) or self.awaited, f"{name} ran ahead of nothing"
