"""What synchronous speculation gives by arithmetic: for proportions that no fixture on this machine has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proportions:
    """Seconds of one token without drafts: `network` of them on the way, `compute` in the stages.

    `slope`: by which share of `compute` one more token makes a verification longer; `draft`: seconds of one draft.
    """

    network: float
    compute: float
    slope: float
    draft: float

    def gain(self, chance: float, drafts: int) -> float:
        """Tokens a second over those without drafts, when each draft is right with `chance`, given those before it.

        A round drafts, verifies and commits 1 … `drafts` + 1 tokens; nothing overlaps.
        """
        tokens = sum(chance**right for right in range(drafts + 1))
        seconds = self.network + self.compute * (1 + self.slope * drafts) + self.draft * drafts
        return tokens * (self.network + self.compute) / seconds


PAPER_70B = Proportions(network=0.048, compute=1 / 1.40 - 0.048, slope=0.047, draft=0.016)
"""The paper's 70B on four PCs: 1.40 tokens a second, three round trips of 16 ms; a draft of the 1B model takes 16 ms.
The slope is that of its 8B on one PC: 47 ms for four tokens, 41.2 ms for one."""
