"""The pictures of docs/paper.md: what they show (pure), and how it is drawn.

Bars for tables whose lines are ratios of unlike systems; curves where K or a delay is swept. What was measured here is
solid, what the paper says is hatched or dashed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.paper.measured import Figure
from bench.paper.table import Picture, Table, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HERE, _PAPER, _LEVEL = "#1f6f8b", "#b0b7bd", "#30343f"
_COLOURS = ("#1f6f8b", "#d1495b", "#66a182", "#edae49")


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a table. `low` and `high` are the rounds' ends."""

    label: str
    here: float
    low: float
    high: float
    paper: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by x; the paper's stand only where it has them."""

    label: str
    here: tuple[tuple[float, float], ...]
    paper: tuple[tuple[float, float], ...]


def bars(table: Table, figures: Mapping[str, Figure]) -> list[Bar]:
    """The ratios of a table that were measured, in its order."""
    found = []
    for entry in table.entries:
        figure = figures.get(entry.key)
        if figure is not None and entry.unit is Unit.RATIO:
            low = figure.value if figure.low is None else figure.low
            high = figure.value if figure.high is None else figure.high
            found.append(Bar(entry.label, figure.value, low, high, entry.paper))
    return found


def curves(table: Table, picture: Picture, figures: Mapping[str, Figure]) -> list[Curve]:
    """The picture's lines, without points that were not measured; a curve of the paper's that two share stands once."""
    found: list[Curve] = []
    for line in picture.lines:
        here = tuple((x, figures[key].value) for x, key in sorted(line.points.items()) if key in figures)
        papers = ((x, table.entry(key).paper) for x, key in sorted(line.points.items()))
        paper = tuple((x, figure) for x, figure in papers if figure is not None)
        found.append(Curve(line.label, here, () if any(paper == other.paper for other in found) else paper))
    return found


def levels(picture: Picture, figures: Mapping[str, Figure]) -> dict[str, float]:
    """The picture's levels that were measured."""
    return {label: figures[key].value for label, key in picture.levels.items() if key in figures}


def draw(table: Table, picture: Picture, figures: Mapping[str, Figure], path: Path) -> None:
    """Write the picture as SVG; the same bytes for the same figures."""
    # Two seconds to import: only who draws waits for it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    shown = bars(table, figures)
    height = 4.0 if picture.lines else 1.2 + 0.5 * len(shown)
    # Without a salt of its own each SVG has other identifiers.
    with rc_context({"svg.hashsalt": table.name, "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}):
        canvas = Canvas(figsize=(8.0, height), layout="constrained")
        axes = canvas.subplots()
        if picture.lines:
            _draw_curves(axes, curves(table, picture, figures), levels(picture, figures))
            axes.set_xlabel(picture.x_label)
            axes.set_ylabel("×")
        else:
            _draw_bars(axes, shown)
            axes.set_xlabel("×")
        axes.set_title(picture.title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        partial = path.with_name(path.name + ".partial")
        canvas.savefig(partial, format="svg", metadata={"Date": None, "Creator": None})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _draw_bars(axes: Axes, shown: list[Bar]) -> None:
    places = range(len(shown))
    here = [bar.here for bar in shown]
    spread = [[bar.here - bar.low for bar in shown], [bar.high - bar.here for bar in shown]]
    axes.barh([place - 0.2 for place in places], here, 0.38, xerr=spread, color=_HERE, label="here", capsize=2)
    papers = [(place + 0.2, bar.paper) for place, bar in zip(places, shown, strict=True) if bar.paper is not None]
    if papers:
        at, values = zip(*papers, strict=True)
        axes.barh(at, values, 0.38, color=_PAPER, hatch="///", edgecolor="white", label="paper")
    axes.axvline(1.0, color="black", linewidth=0.6)
    axes.set_yticks(list(places), [bar.label for bar in shown])
    axes.invert_yaxis()


def _draw_curves(axes: Axes, shown: list[Curve], level: Mapping[str, float]) -> None:
    for curve, colour in zip(shown, _COLOURS, strict=False):
        if curve.here:
            x, y = zip(*curve.here, strict=True)
            axes.plot(x, y, marker="o", color=colour, label=curve.label)
        if curve.paper:
            x, y = zip(*curve.paper, strict=True)
            axes.plot(
                x, y, marker="s", markersize=4, linestyle="--", color=colour, alpha=0.6, label=f"paper, {curve.label}"
            )
    for (label, value), style in zip(level.items(), ("dotted", "dashdot"), strict=False):
        axes.axhline(value, color=_LEVEL, linestyle=style, label=label)
    axes.axhline(1.0, color="black", linewidth=0.6)
