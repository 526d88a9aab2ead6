"""What a benchmark hands in, and how it is shown and written.

A benchmark module has `TITLE` and `run(quick) -> Report`. `results` holds the key names that documentation and
checks use; `spreads` shows how far the rounds lay apart; `notes` say what was compared with what. `details` stand in
the JSON document alone; `pictures` are SVG by name, written beside it.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import Spread

Value = float | int | str


@dataclass(slots=True)
class Report:
    """The figures of one benchmark."""

    results: dict[str, Value] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, value: Value | Spread) -> None:
        """Record a figure; of a Spread the median is the figure."""
        if isinstance(value, Spread):
            self.spreads[key] = value
            value = value.median
        self.results[key] = round(value, 4) if isinstance(value, float) else value


def machine() -> dict[str, Value]:
    """What the figures were measured on."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    versions = {name: _version(name) for name in ("openvino", "openvino-genai", "nncf", "grpcio", "numpy")}
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{f"{name} version": version for name, version in versions.items()},
    }


def show(name: str, report: Report, console: Console) -> None:
    """Print the table and the notes."""
    table = Table(title=f"bench {name}")
    for column in ("figure", "value", "lowest", "highest"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for key, value in report.results.items():
        spread = report.spreads.get(key)
        ends = (f"{spread.low:.3f}", f"{spread.high:.3f}") if spread else ("", "")
        table.add_row(key, f"{value:.3f}" if isinstance(value, float) else str(value), *ends)
    console.print(table)
    for note in report.notes:
        console.print(f"- {note}")


def write(path: Path, name: str, report: Report) -> None:
    """Write the JSON document and its pictures, each whole or not at all."""
    document = {
        "bench": name,
        "machine": machine(),
        "results": report.results,
        "spread": {key: [spread.low, spread.high] for key, spread in report.spreads.items()},
        "notes": report.notes,
        **({"details": report.details} if report.details else {}),
    }
    _write(path, json.dumps(document, indent=2) + "\n")
    for key, picture in report.pictures.items():
        _write(path.with_name(f"{path.stem}-{key}.svg"), picture)


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
