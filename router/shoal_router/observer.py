"""What a step loop tells whoever counts: steps, and what became of answers when a pipeline was lost.

Called on the event loop, several times a step: an observer only notes. `metrics/pipeline` is the one that counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import StageError
from shoal.wire.messages import StageTiming


class StepObserver:
    """Hears everything and notes nothing: what a step loop has when nobody counts."""

    def opened(self, stages: int) -> None:
        """A pipeline is open; nothing is in flight."""

    def submitted(self, now: float) -> None:
        """A step was sent."""

    def returned(self, now: float, sent: float, timings: Sequence[StageTiming]) -> None:
        """The oldest step in flight, which left at `sent`, came back."""

    def lost(self, error: StageError) -> None:
        """The pipeline was lost; nothing is in flight any more."""

    def resumed(self, tokens: int) -> None:
        """An answer of so many ids, prompt and all, is computed again on the next pipeline."""

    def moved(self, tokens: int) -> None:
        """An answer of so many ids came here from another pipeline and is computed again."""

    def failed(self) -> None:
        """An answer ended with an error."""
