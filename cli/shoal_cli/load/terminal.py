"""The figures in the terminal: a line for each point or window as it comes, then a table and bars."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shoal_cli.load.drift import Soak, Window
from shoal_cli.load.drift_chart import panels
from shoal_cli.load.figures import Point
from shoal_cli.load.page import DRIFT_HEADS, HEADS, drift_rows, row_of
from shoal_cli.terminal import progress

_BAR = 40
_STEPS = "▁▂▃▄▅▆▇█"


def say_point(point: Point) -> None:
    """One line, while others are still measured."""
    failed = f", {point.failed} failed: {point.first_error}" if point.failed else ""
    progress().print(
        f"{point.concurrency} user{'s' if point.concurrency > 1 else ''}, prompts of {point.prompt_tokens} tokens: "
        f"{point.tokens_per_second:.1f} tokens/s{failed}",
        soft_wrap=True,
    )


def figures_table(points: Sequence[Point], model: str) -> Group:
    """Everything, times in ms."""
    table = Table(title=f"{model}, times in ms", title_justify="left", box=None, pad_edge=False)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for point in points:
        table.add_row(*row_of(point))
    return Group(table, Text(), *bars(points))


def bars(points: Sequence[Point]) -> list[Text]:
    """Throughput as bars."""
    most = max((point.tokens_per_second for point in points), default=0.0) or 1.0
    lines = [Text("tokens a second")]
    for point in points:
        bar = "█" * max(round(point.tokens_per_second / most * _BAR), 1)
        lines.append(Text(f"{point.concurrency:>4} x {point.prompt_tokens:<6} {bar} {point.tokens_per_second:.1f}"))
    return lines


def say_window(window: Window) -> None:
    """One line, while the load goes on."""
    failed = f", {window.failed} failed" if window.failed else ""
    waits = "".join(
        f", {name} p50 {found.p50:.0f} p99 {found.p99:.0f} ms"
        for name, found in (("TTFT", window.ttft), ("ITL", window.itl))
        if found is not None
    )
    progress().print(
        f"{(window.start + window.seconds) / 60:5.1f} min: {window.tokens_per_second:.1f} tokens/s{waits}{failed}",
        soft_wrap=True,
    )


def drift_table(soak: Soak, model: str) -> Group:
    """How the last third differs from the first, and each curve in one line."""
    table = Table(title=f"{model}, times in ms, memory in MiB", title_justify="left", box=None, pad_edge=False)
    for head in DRIFT_HEADS:
        table.add_column(head, justify="left" if head == DRIFT_HEADS[0] else "right", no_wrap=True)
    for row in drift_rows(soak):
        table.add_row(*row)
    curves = [
        Text(f"{panel.title}, {curve.label}\n{sparkline(curve.values)}")
        for panel in panels(soak.windows)
        for curve in panel.curves
    ]
    told = f"{soak.answers} answers, {soak.failed} failed, {soak.lost} of them after they had begun"
    return Group(Text(f"{told}: {soak.first_error}" if soak.failed else told), Text(), table, Text(), *curves)


def sparkline(values: Sequence[float | None]) -> str:
    """A block for each value, from none (0) to full (the largest); a space where there is no value."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else _STEPS[round(value / most * (len(_STEPS) - 1))] for value in values)
