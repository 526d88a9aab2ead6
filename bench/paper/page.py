"""docs/paper.md from docs/paper.json: pure, the same page for the same figures.

python -m bench.paper [FOLDER]      write the page and its pictures anew, without measuring
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

from bench.paper.measured import Document, Figure, Measured
from bench.paper.table import Entry, Table, Unit, accepted_key, rate_key

FILE = "paper.md"

_WIDTH = 120
_NOTHING = "–"
_INTRODUCTION = """\
# The paper's tables, on this machine

The paper is "Pre-Compiled Pipeline Shards for Distributed LLM Inference on Intel AI PC Fleets" (arXiv 2608.19147). Its
figures are those that its authors measured again (reproduction/RESULTS.md in its repository), where there are such.

This page is written by `python -m bench paper`; do not edit it. `--table NAME` measures one table anew and leaves the
others as they are. What is compared is ratios: this machine has neither the paper's model nor its PCs, and what differs
stands under each table. Tokens a second stand beside them to show the scale. A figure is the median of the rounds'
ratios, with the lowest and the highest; `accepted` is the share of all drafts sent that were right."""

_LEFT_OUT = """\
## What is not here

| of the paper | why |
|---|---|
| Gemma 4 E2B, NPU slots | no model of that family and no NPU on this machine |
| long answers with drafts, 1,024 to 4,096 tokens | they take longer than all tables together |
| compression of hidden states | int8 corrupts the paper's answers; shoal sends BF16 (`python -m bench hop`) |
| 70B on four PCs | only its shape; the rest is arithmetic, and says so |"""


def page(tables: Mapping[str, Table], document: Document) -> str:
    """The whole page. Tables that were never measured say so."""
    parts = [_INTRODUCTION]
    parts += [section(table, document.tables.get(name)) for name, table in tables.items()]
    return "\n\n".join([*parts, _LEFT_OUT]) + "\n"


def section(table: Table, measured: Measured | None) -> str:
    """One table with its picture and what differs."""
    head = "\n\n".join([f"## {table.name}: {table.title}", _wrapped(f"{table.text} In the paper: {table.source}.")])
    if measured is None:
        return f"{head}\n\nNot measured yet."
    parts = [head, lines(table, measured.figures)]
    if table.picture is not None:
        parts.append(f"![{table.picture.title}](pictures/{picture_file(table)})")
    parts.append("What differs:\n\n" + "\n".join(_item(text) for text in table.differs))
    parts.append(_wrapped(_circumstances(measured)))
    return "\n\n".join(parts)


def picture_file(table: Table) -> str:
    """The picture's name in docs/pictures."""
    return f"paper-{table.name}.svg"


def lines(table: Table, figures: Mapping[str, Figure]) -> str:
    """The table itself; columns that nothing stands in are left out."""
    head = ["", "here", "lowest – highest", "paper", "tok/s", "paper, tok/s", "accepted", "paper, accepted"]
    rows = [[_escaped(entry.label), *_cells(entry, figures)] for entry in table.entries]
    kept = [at for at in range(len(head)) if at < 4 or any(row[at] != _NOTHING for row in rows)]
    written = [head, ["---" if at == 0 else "---:" for at in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(row[at] for at in kept) + " |" for row in written)


def _cells(entry: Entry, figures: Mapping[str, Figure]) -> list[str]:
    figure = figures.get(entry.key)
    ends = _NOTHING
    if figure is not None and figure.low is not None and figure.high is not None:
        ends = f"{number(figure.low, entry.unit)} – {number(figure.high, entry.unit)}"
    rate, accepted = (figures.get(key(entry.system)) for key in (rate_key, accepted_key))
    return [
        _NOTHING if figure is None else f"**{number(figure.value, entry.unit)}**",
        ends,
        _or_nothing(entry.paper, entry.unit),
        _or_nothing(rate.value if rate else None, Unit.PLAIN),
        _or_nothing(entry.paper_rate, Unit.PLAIN),
        _or_nothing(accepted.value if accepted else None, Unit.SHARE),
        _or_nothing(entry.paper_accepted, Unit.SHARE),
    ]


def _or_nothing(value: float | None, unit: Unit) -> str:
    return _NOTHING if value is None else number(value, unit)


def number(value: float, unit: Unit) -> str:
    """A figure as it is written: three digits that count, at most two behind the point."""
    if unit is Unit.SHARE:
        value *= 100
    whole = unit in (Unit.BYTES, Unit.COUNT) or abs(value) >= 100
    places = 0 if whole else 1 if abs(value) >= 10 or unit is Unit.SHARE else 2
    text = f"{value:,.{places}f}"
    if value and not float(text.replace(",", "")):
        text = f"{value:.0e}"
    return text if unit in (Unit.COUNT, Unit.PLAIN) else f"{text} {unit.value}"


def _circumstances(measured: Measured) -> str:
    text = (
        f"Measured on {measured.day} on {measured.cores} cores ({measured.cpu}), OpenVINO "
        f"{measured.openvino.split('-')[0]}: {'; '.join(measured.notes)}."
    )
    return "**With `--quick`: shows that it runs, not a figure.** " + text if measured.quick else text


def _item(text: str) -> str:
    return fill(text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _wrapped(text: str) -> str:
    return fill(text, _WIDTH, break_on_hyphens=False, break_long_words=False)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
