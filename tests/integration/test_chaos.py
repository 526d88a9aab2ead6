"""The chaos harness in its short form: every blow, eight clients, and no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.models import smollm2
from chaos.run import run
from chaos.schedule import Blow, schedule

SEED, SECONDS = 1, 300.0


@pytest.mark.timeout(600)
async def test_clients_of_a_pipeline_that_is_hit_all_the_time_get_right_answers_or_proper_errors(tmp_path: Path):
    assert {event.blow for event in schedule(SEED, SECONDS)} == set(Blow)
    report = await run(smollm2().directory, tmp_path, SEED, SECONDS, clients=8)
    assert report.findings == [], report.document()
    assert len(report.events) == len(schedule(SEED, SECONDS))
    assert report.ends["complete"] >= 8, report.document()
