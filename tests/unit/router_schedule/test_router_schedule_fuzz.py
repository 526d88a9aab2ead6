"""Random schedules with speculation against plain decoding: whatever is drawn and in whatever order, one text.

What each run holds (conftest, FakeStage, check_integrity): the committed text is that of plain decoding; every reply
answers the oldest step; no row leaves a gap at a stage, and all stages hold the same positions when nothing is under
way; guesses stand behind the committed ids; only the current version commits; no id before the known ones is verified;
no block is lost or handed on while its sequence has rows in flight; rows run ahead on credit only; nothing is fed at
the limit or behind a stop; only committed outcomes are counted; cancelled, preempted and lost work leaves the other
texts alone; no head waits for rows that ran ahead; and in the end everything was answered.
"""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("part", range(4))
def test_200_random_schedules_equal_plain_decoding(fuzz, part):
    runs = [fuzz(seed) for seed in range(part * 50, part * 50 + 50)]
    assert sum(len(run.finished) for run in runs) > 30
    assert sum(run.guesses_ahead for run in runs) > 100
    assert sum(run.speculator.stats.stale for run in runs) > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_10_000_random_schedules_equal_plain_decoding(fuzz, part):
    for seed in range(1000 + part * 1000, 2000 + part * 1000):
        try:
            fuzz(seed)
        except Exception as error:
            raise AssertionError(f"schedule {seed}") from error
