"""Plans and figures as tables for the terminal. Each function returns something that rich prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from shoal.plan.document import PipelinePlan, Plan
from shoal_cli.terminal import bytes_text, results


def print_plan(plan: Plan, name: str) -> None:
    """The stages of every pipeline, the reasons for them, and what would be better."""
    for pipeline in plan.pipelines:
        which = f", pipeline {pipeline.index}" if len(plan.pipelines) > 1 else ""
        results().print(plan_table(pipeline, plan.layers, f"plan of {name}{which}"))
    for standby in plan.standbys:
        stage = standby.stage
        which = f" of pipeline {standby.pipeline}" if len(plan.pipelines) > 1 else ""
        held = stage.describe_blocks(plan.layers)
        line = f"standby: {stage.node} ({stage.device}) for stage {stage.index}{which}: {held}, "
        results().print(line + f"{bytes_text(stage.memory.total)} at the peak", soft_wrap=True)
    if plan.spares:
        results().print(f"spares: {', '.join(plan.spares)}", soft_wrap=True)
    for label, lines in (("why", plan.reasons), ("advice", plan.advice)):
        for line in lines:
            results().print(f"{label}: {line}", soft_wrap=True)


def plan_table(pipeline: PipelinePlan, layers: int, title: str) -> Table:
    """One row a stage: what it holds, each term of its peak memory, the time of a token. Fits 80 columns."""
    table = _table(title, "#", "node", "on", "holds")
    for heading in ("weights", "loading", "KV", "runtime", "peak", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in pipeline.stages:
        memory = stage.memory
        table.add_row(
            str(stage.index),
            stage.node,
            str(stage.device),
            stage.describe_blocks(layers),
            bytes_text(memory.weights),
            f"+{bytes_text(memory.load_peak)}",
            bytes_text(memory.kv),
            bytes_text(memory.runtime),
            bytes_text(memory.total),
            f"{stage.step_ms:.1f}",
        )
    return table


def timing_tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Table]:
    """Where each stage's time went between two statuses of the router, per step; of pipelines that ran any."""
    earlier = {pipeline["index"]: pipeline for pipeline in before["pipelines"]}
    tables = []
    for pipeline in after["pipelines"]:
        name = f"pipeline {pipeline['index']}, " if len(after["pipelines"]) > 1 else ""
        tables.append(_timing_table(name, earlier.get(pipeline["index"], {}), pipeline))
    return [table for table in tables if table is not None]


def _timing_table(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Table | None:
    if after["epoch"] != before.get("epoch"):
        before = {}  # a pipeline that was opened since then counts from 0
    steps = after["steps"] - before.get("steps", 0)
    if steps <= 0:
        return None
    earlier = {timing["stage"]: timing for timing in before.get("timings", ())}
    table = _table(f"{name}per step, mean of {steps} steps", "stage")
    for heading in ("compute", "wait for work", "wait in queue", "send", "busy"):
        table.add_column(heading, justify="right")
    for timing in after["timings"]:
        was = earlier.get(timing["stage"], {})
        compute, idle, queue, send = (
            timing.get(field, 0) - was.get(field, 0) for field in ("compute_us", "idle_us", "queue_us", "send_us")
        )
        busy = compute / (compute + idle) if compute + idle > 0 else 0.0
        table.add_row(str(timing["stage"]), *_milliseconds((compute, idle, queue, send), steps), f"{busy:.0%}")
    return table


def models_table(bodies: Iterable[Mapping[str, Any]]) -> Table:
    """One row a ShardedModel, as `kubectl get` shows them."""
    table = _table("", "namespace", "name", "ready", "reason", "stages", "url")
    for column in table.columns:
        if column.header in ("namespace", "url"):
            # Where the line is too short for all, these go on in the next one: a reason or a URL in part is of no use.
            column.no_wrap, column.overflow = False, "fold"
    for body in bodies:
        metadata, status = body["metadata"], body.get("status", {})
        ready = _conditions(status).get("Ready", {})
        table.add_row(
            metadata.get("namespace", ""),
            metadata["name"],
            ready.get("status", "Unknown"),
            ready.get("reason", ""),
            status.get("stages", ""),
            status.get("url", ""),
        )
    return table


def print_model(body: Mapping[str, Any]) -> None:
    """Conditions with their messages, then the plan in force."""
    status = body.get("status", {})
    for kind, condition in _conditions(status).items():
        line = f"{kind}: {condition['status']} ({condition['reason']}) {condition.get('message', '')}".rstrip()
        results().print(line, soft_wrap=True, markup=False)
    plan = status.get("plan", {})
    for pipeline in plan.get("pipelines", ()):
        table = _table(f"pipeline {pipeline['index']}", "#", "node", "on", "holds", "peak", "ready")
        for stage in pipeline["stages"]:
            table.add_row(
                str(stage["index"]),
                stage["node"],
                stage["device"],
                stage["layers"],
                bytes_text(stage["memoryBytes"]),
                "yes" if stage.get("ready") else "no",
            )
        results().print(table)
    for stage in plan.get("standbys", ()):
        ready = "ready" if stage.get("ready") else "not ready"
        line = f"standby: {stage['node']} ({stage['device']}) for stage {stage['index']}: {stage['layers']}, {ready}"
        results().print(line, soft_wrap=True, markup=False)
    for label, key in (("spares", "spares"), ("advice", "advice")):
        for line in plan.get(key, ()):
            results().print(f"{label}: {line}", soft_wrap=True, markup=False)
    if status.get("url"):
        results().print(f"url: {status['url']}", soft_wrap=True)


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["type"]: each for each in status.get("conditions", ())}


def facts_table(facts: Mapping[str, str]) -> Table:
    """Names and values, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _milliseconds(sums_us: Iterable[int], steps: int) -> list[str]:
    return [f"{total / steps / 1000:.2f} ms" for total in sums_us]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
