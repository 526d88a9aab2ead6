"""Alerts and dashboards of the chart, as Prometheus itself reads them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts/shoal"
RULES = CHART / "files/rules/shoal.yaml"
OF = 'namespace="ai", shoal_dev_model="llama"'

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(promtool: Path) -> Run:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60, check=False)

    return run


def test_promtool_takes_every_alert(run: Run) -> None:
    done = run("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", sorted((CHART / "files/dashboards").glob("*.json")), ids=lambda file: file.stem)
def test_promtool_takes_every_query_of_a_dashboard(run: Run, tmp_path: Path, file: Path) -> None:
    queries = [target["expr"] for panel in json.loads(file.read_text())["panels"] for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    wrapped = tmp_path / "rules.yaml"
    wrapped.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = run("check", "rules", wrapped)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    more = "".join(f', {key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{OF}{more}}}", "values": values}


# What happens, the alert that must come of it, and when.
HAPPENINGS: dict[str, tuple[str, list[dict[str, str]]]] = {
    "no pipeline": ("ShoalModelDown", [series("shoal_pipeline_open", "1x3 0x60", pipeline="0")]),
    "one of two pipelines": (
        "ShoalPipelineDown",
        [series("shoal_pipeline_open", "1x60", pipeline="0"), series("shoal_pipeline_open", "0x60", pipeline="1")],
    ),
    "a link that breaks": (
        "ShoalPipelineUnsteady",
        [series("shoal_pipeline_lost_total", "0x5 1+1x20", pipeline="0", reason="StageUnreachable")],
    ),
    "an answer lost": ("ShoalAnswersLost", [series("shoal_recovery_total", "0x20 3x5", outcome="failed")]),
    "a queue": ("ShoalQueueStays", [series("shoal_queue_depth", "4x60")]),
    "too many requests": (
        "ShoalRequestsRejected",
        [series("shoal_rejected_total", "0+60x60", reason="rate_limit_exceeded")],
    ),
    "a slow prompt": (
        "ShoalFirstTokenSlow",
        [
            series("shoal_request_ttft_seconds_bucket", "0x60", le="30"),
            series("shoal_request_ttft_seconds_bucket", "0+10x60", le="60"),
            series("shoal_request_ttft_seconds_bucket", "0+10x60", le="+Inf"),
        ],
    ),
    "a stranger": (
        "ShoalStrangerRefused",
        [series("shoal_refused_total", "0x20 1x5", pipeline="0", where="stage-0", reason="Handshake")],
    ),
    "a replayed frame": (
        "ShoalFramesRefused",
        [series("shoal_refused_total", "0x20 1x5", pipeline="0", where="stage-1", reason="InvalidFrame")],
    ),
    "no router": ("ShoalRouterDown", [series("up", "0x60", endpoint="metrics")]),
    "no leader": ("ShoalOperatorNotLeading", [series("shoal_operator_leading", "0x60")]),
    "a model that is not ready": ("ShoalModelNotReady", [series("shoal_operator_models", "1x60", ready="False")]),
    "an API server that says no": (
        "ShoalReconcileFails",
        [series("shoal_operator_reconciles_total", "0+1x60", outcome="defect")],
    ),
}


def test_each_alert_comes_when_it_must_and_none_when_all_is_well(run: Run, tmp_path: Path) -> None:
    """Each happening is asked for its own alert; a quiet hour is asked for all of them."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    alerts = {rule["alert"] for rule in rules}
    assert {alert for alert, _ in HAPPENINGS.values()} == alerts
    quiet = [
        series("shoal_pipeline_open", "1x60", pipeline="0"),
        series("shoal_queue_depth", "0 3 0x3 2 0x60"),
        series("shoal_rejected_total", "0+1x60", reason="model_not_found"),
        series("shoal_recovery_total", "0x10 4x50", outcome="resumed"),
        series("up", "1x60", endpoint="metrics"),
        series("shoal_operator_leading", "1x60"),
        series("shoal_operator_reconciles_total", "0+30x60", outcome="done"),
    ]
    tests: list[dict[str, Any]] = [
        case(name, given, f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})')
        for name, (alert, given) in HAPPENINGS.items()
    ]
    tests.append(case("a quiet hour", quiet, '1 - sum(ALERTS{alertstate="firing"} or vector(0))'))
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = run("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def case(name: str, given: list[dict[str, str]], query: str) -> dict[str, Any]:
    """A promtool test: after 25 minutes of `given`, `query` is 1."""
    samples = [{"labels": "{}", "value": 1}]
    return {
        "name": name,
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [{"expr": query, "eval_time": "25m", "exp_samples": samples}],
    }
