"""Write docs/paper.md and its pictures from docs/paper.json."""

from __future__ import annotations

import os
from pathlib import Path

from bench.paper.chart import draw
from bench.paper.measured import load
from bench.paper.page import FILE, page, picture_file
from bench.paper.tables import TABLES
from shoal.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"
_PICTURES = "pictures"


def write_page(folder: Path) -> None:
    """Page and pictures, each whole or not at all. Raises UsageError when there is no such folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: make it, or name another with --into")
    document = load(folder)
    (folder / _PICTURES).mkdir(exist_ok=True)
    for name, measured in document.tables.items():
        table = TABLES.get(name)
        if table is not None and table.picture is not None:
            draw(table, table.picture, measured.figures, folder / _PICTURES / picture_file(table))
    path = folder / FILE
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(page(TABLES, document))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
