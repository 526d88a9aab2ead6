"""One generation as the scheduler sees it.

There are no phases: `num_computed` (positions sent to the stages) catches up with the number of committed ids.
A whole prompt missing is prefill, a part of it chunked prefill, one id decode; a preempted or replayed sequence
is prefill again, of prompt and answer so far. This is vLLM v1's formulation (its NOTE in `schedule()`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from shoal.wire.messages import SamplingParams, SequenceStart
from shoal_router.generation import FinishReason


class SequenceState(Enum):
    """WAITING holds no KV memory, RUNNING does, OVER keeps it only until its last frame is back."""

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Sequence:
    """Invariants: `acknowledged <= num_computed <= len(tokens)`; `len(tokens) <= limit`; `in_flight` counts the
    rows of every version that have no result yet, and memory goes back only when it is 0.
    """

    id: int
    prompt_len: int
    tokens: list[int]
    params: SamplingParams
    limit: int
    stop_token_ids: frozenset[int]
    state: SequenceState = SequenceState.WAITING
    version: int = 0
    num_computed: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    published: int = 0
    introduced: bool = False
    cached_tokens: int = 0
    begun: bool = False
    admitted: float = 0.0

    @property
    def remaining(self) -> int:
        """Committed ids that were not yet sent to the stages."""
        return len(self.tokens) - self.num_computed

    def introduction(self) -> SequenceStart:
        """What the stages must know with the first row since admission."""
        self.introduced = True
        return SequenceStart(self.params, self.prompt_len, tuple(self.tokens[: self.num_computed]))

    def commit(self, token: int) -> FinishReason | None:
        """Append a drawn id; says whether it ends the sequence."""
        self.tokens.append(token)
        if token in self.stop_token_ids:
            return FinishReason.STOP
        if len(self.tokens) >= self.limit:
            return FinishReason.LENGTH
        return None

    def forget_computed(self) -> None:
        """Nothing is computed any more. Frames still in flight belong to an older version and will be ignored."""
        self.version += 1
        self.num_computed = self.acknowledged = self.published = 0
        self.introduced = False
        self.slot = -1
