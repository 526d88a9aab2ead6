"""The figures in the terminal: a line for each point as it comes, then a table and bars."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shoal_cli.load.figures import Point
from shoal_cli.load.page import HEADS, row_of
from shoal_cli.terminal import progress

_BAR = 40


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
