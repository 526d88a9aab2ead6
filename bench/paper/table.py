"""What a table of the paper is here: its lines with the paper's figures, how it is measured, what differs.

    Table ──measure──> Report ──> Measured (docs/paper.json) ──page, chart──> docs/paper.md, docs/pictures

A line's figure is a ratio wherever the paper's can be written as one: rates of a fixture on this machine and of an 8B
model on its PCs have nothing to say to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from bench.report import Report


class Unit(Enum):
    """How a figure is written."""

    RATIO = "×"
    SHARE = "%"
    MS = "ms"
    BYTES = "bytes"
    COUNT = "count"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. `key` names its figure in the report; `paper` is the paper's figure of the same meaning, if it has one.

    Of a ratio of two systems' rates `system` and `over` name them (see `of_rates`); `paper_rate` is what the paper's
    system makes, in tokens a second, `paper_accepted` the share of its drafts that were accepted.
    """

    label: str
    key: str
    unit: Unit = Unit.RATIO
    paper: float | None = None
    system: str = ""
    over: str = ""
    paper_rate: float | None = None
    paper_accepted: float | None = None

    @classmethod
    def of_rates(
        cls,
        label: str,
        system: str,
        over: str,
        *,
        paper: float | None = None,
        paper_over: float | None = None,
        accepted: float | None = None,
    ) -> Entry:
        """`system` ÷ `over`, with the paper's rates of both."""
        ratio = paper / paper_over if paper is not None and paper_over is not None else None
        return cls(label, f"{system} over {over}", Unit.RATIO, ratio, system, over, paper, accepted)


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a picture: where each of its points lies on the x axis, and which entry's figure it is."""

    label: str
    points: Mapping[float, str]


@dataclass(frozen=True, slots=True)
class Picture:
    """Bars of all ratios, or lines when there are any; `levels`: entries by label that hold for every x."""

    title: str
    x_label: str = ""
    lines: tuple[Line, ...] = ()
    levels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Table:
    """`source`: where in the paper; `text`: what is compared; `differs`: what is not alike, a sentence each."""

    name: str
    title: str
    source: str
    text: str
    entries: tuple[Entry, ...]
    differs: tuple[str, ...]
    measure: Callable[[Table, bool], Report]
    picture: Picture | None = None

    def entry(self, key: str) -> Entry:
        """The line of a figure."""
        return next(entry for entry in self.entries if entry.key == key)


def rate_key(system: str) -> str:
    """The report's name for a system's tokens a second."""
    return f"tokens_per_s.{system}"


def accepted_key(system: str) -> str:
    """The report's name for the share of a system's drafts that were accepted, of all that were sent."""
    return f"accepted.{system}"
