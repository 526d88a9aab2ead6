"""The start-up test refuses devices that compute, remember or roll back wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import ResourceError
from shoal.wire.messages import Row
from shoal_stage.engine.fake import FakeEngine
from shoal_stage.engine.selftest import check_against, check_memory

PAGE = 32
Change = Callable[[Sequence[Row], NDArray[np.float32]], NDArray[np.float32]]


class Faulty(FakeEngine):
    """A device with a fault."""

    def __init__(self, fault: Change, start: int = 0, end: int = 6) -> None:
        super().__init__(start, end, block_size=PAGE)
        self.fault = fault

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See Engine.run."""
        return self.fault(rows, super().run(rows, hidden))


def sound(rows: Sequence[Row], out: NDArray[np.float32]) -> NDArray[np.float32]:
    return out


def no_numbers(rows: Sequence[Row], out: NDArray[np.float32]) -> NDArray[np.float32]:
    out[0, 0] = np.nan
    return out


def forgetful(rows: Sequence[Row], out: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.roll(out, 1, axis=1) if rows[0].past_len == PAGE - 1 else out


def lost_after_the_page(rows: Sequence[Row], out: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.roll(out, 1, axis=1) if rows[0].past_len == PAGE else out


class StuckAfterRollback:
    """A position is right when the row is run and right when it is overwritten, but not when it is written again."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, rows: Sequence[Row], out: NDArray[np.float32]) -> NDArray[np.float32]:
        self.times += rows[0].past_len == PAGE
        return np.roll(out, 1, axis=1) if self.times == 3 else out


@pytest.mark.parametrize(("start", "end"), [(0, 6), (0, 3), (3, 6)])
def test_a_sound_device_passes_and_holds_nothing_afterwards(start: int, end: int) -> None:
    engine = Faulty(sound, start, end)
    check_memory(engine, first=start == 0)
    check_against(engine, Faulty(sound, start, end), first=start == 0)
    assert engine.live == frozenset()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (no_numbers, "no numbers"),
        (forgetful, "one after the other"),
        (lost_after_the_page, "one after the other"),
        (StuckAfterRollback(), "after a rollback"),
    ],
)
def test_a_faulty_device_is_refused(fault: Change, words: str) -> None:
    with pytest.raises(ResourceError, match=words):
        check_memory(Faulty(fault), first=True)


def test_case_56_a_device_that_computes_garbage_is_refused() -> None:
    garbage = Faulty(lambda rows, out: np.roll(out, 1, axis=1))
    with pytest.raises(ResourceError, match="compared with the CPU"):
        check_against(garbage, Faulty(sound), first=True)
