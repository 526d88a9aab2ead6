"""The paper's tables, as far as this machine can carry them: each measured in shape, beside the paper's figures.

    python -m bench paper                       every table; writes docs/paper.json, docs/paper.md, docs/pictures
    python -m bench paper --table wan           this one only; the others stay as they are
    python -m bench paper --quick [--into DIR]  few tokens, one round; writes nothing unless told where

Each table is written as soon as it is measured, so that a run that is interrupted loses one table at most.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from bench.paper.measured import load, measured, save
from bench.paper.tables import TABLES
from bench.paper.write import DOCS, write_page
from bench.report import Report
from shoal.errors import UsageError

TITLE = "the paper's tables in shape, beside its figures; writes docs/paper.md (--table NAME, --into DIR)"


def run(quick: bool, names: Sequence[str] = (), into: Path | None = None) -> Report:
    """Measure the tables of these names, all without any. `quick` takes one short round of each."""
    for name in names:
        if name not in TABLES:
            raise UsageError(f"the paper has no table {name!r} here; there are {', '.join(TABLES)}")
    folder = into or (None if quick else DOCS)
    if folder is not None:
        write_page(folder)  # what cannot be written is said now and not after twenty minutes
    whole = Report()
    for name in names or TABLES:
        table = TABLES[name]
        report = table.measure(table, quick)
        if folder is not None:
            document = load(folder)
            document.tables[name] = measured(report, quick=quick, day=datetime.date.today())
            save(folder, document)
            write_page(folder)
        for key, value in report.results.items():
            whole.add(f"{name}: {key}", report.spreads.get(key, value))
        whole.notes += [f"{name}: {note}" for note in report.notes]
    return whole
