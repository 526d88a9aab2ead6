"""docs/paper.json: the figures of each table as they were measured last, each with its day and machine.

Tables are measured alone or together; a table that is measured again replaces its own figures and no other's. The page
and the pictures are made of this file alone.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.report import Report, machine
from shoal.errors import UsageError

FILE = "paper.json"


class Figure(BaseModel):
    """A figure, and how far the rounds lay apart."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    low: float | None = None
    high: float | None = None


class Measured(BaseModel):
    """One table's figures."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    day: datetime.date
    quick: bool
    cpu: str
    cores: int
    openvino: str
    figures: dict[str, Figure]
    notes: list[str]


class Document(BaseModel):
    """All tables that were ever measured, by name."""

    model_config = ConfigDict(extra="forbid")

    tables: dict[str, Measured] = Field(default_factory=dict)


def measured(report: Report, *, quick: bool, day: datetime.date) -> Measured:
    """A report as it is kept."""
    facts = machine()
    figures = {}
    for key, value in report.results.items():
        spread = report.spreads.get(key)
        ends = {} if spread is None else {"low": round(spread.low, 4), "high": round(spread.high, 4)}
        figures[key] = Figure(value=float(value), **ends)
    return Measured(
        day=day,
        quick=quick,
        cpu=str(facts["cpu"]),
        cores=int(facts["cores"]),
        openvino=str(facts["openvino version"]),
        figures=figures,
        notes=report.notes,
    )


def load(folder: Path) -> Document:
    """What was measured so far. Raises UsageError when the file is not what it should be."""
    path = folder / FILE
    if not path.exists():
        return Document()
    try:
        return Document.model_validate_json(path.read_text())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {where}: {first['msg']}: restore it, or delete it and measure anew") from None


def save(folder: Path, document: Document) -> None:
    """Write the file whole or not at all."""
    path = folder / FILE
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(document.model_dump_json(indent=1, exclude_none=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
