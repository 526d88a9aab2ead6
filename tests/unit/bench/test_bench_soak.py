"""The report of a long load: figures by name, the plot beside the JSON document."""

from __future__ import annotations

import json

from bench.report import write
from bench.soak import report_of
from shoal_cli.load.drift import Asked, Reading, soak_of
from shoal_cli.load.figures import Sample
from shoal_cli.load.soak import SoakLoad


def test_figures_details_and_plot_are_written(tmp_path):
    load = SoakLoad(2, (32, 128), 64, 100.0)
    asked = [Asked(float(at), at + 0.5, Sample((0.25, 0.5), 32, 2)) for at in range(100)]
    asked.append(Asked(50.0, 50.5, Sample((0.25,), error="broke off")))
    readings = [Reading(float(at), 3, {"router": 100.0, "stage 0": 200.0 + at}) for at in range(100)]
    report = report_of(soak_of(asked, readings, 100.0), load)
    assert {name: report.results[name] for name in ("errors", "streams_lost", "answers")} == {
        "errors": 1,
        "streams_lost": 1,
        "answers": 100,
    }
    assert report.results["tokens_per_s_drift"] == 1
    assert report.results["itl_p99_drift"] == 1
    assert report.results["memory_drift.router"] == 1
    assert 1.2 < report.results["memory_drift.stage 0"] < 1.3
    assert report.spreads["memory_mib.stage 0"].low == 204.5
    assert "the first error: broke off" in report.notes

    write(tmp_path / "soak.json", "soak", report)
    document = json.loads((tmp_path / "soak.json").read_text())
    assert len(document["details"]["windows"]) == 10
    assert (tmp_path / "soak-drift.svg").read_text().startswith("<svg")
    assert len(list(tmp_path.iterdir())) == 2
