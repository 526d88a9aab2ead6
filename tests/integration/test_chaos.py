"""The chaos harness in its short form: every blow once or twice, eight clients, and no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.models import smollm2
from chaos.run import run

SECONDS = 50.0


@pytest.mark.timeout(280)
async def test_clients_of_a_pipeline_that_is_hit_all_the_time_get_right_answers_or_proper_errors(tmp_path: Path):
    report = await run(smollm2().directory, tmp_path, seed=3, seconds=SECONDS, clients=8)
    assert report.findings == [], report.document()
    assert len(report.events) >= 6
    assert report.ends["complete"] >= 8, report.document()
