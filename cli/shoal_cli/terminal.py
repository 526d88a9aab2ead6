"""What goes where: results to stdout, progress and errors to stderr. Colour only on a terminal (rich sees to it)."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def results() -> Console:
    """The console on stdout: plans, answers, figures."""
    from rich.console import Console

    # What is printed are paths, prompts and names: [brackets] and :colons: in them are text.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A file or a pipe has no width: tables are not to be squeezed into rich's default of 80.
        console.width = 160
    return console


@cache
def progress() -> Console:
    """The console on stderr: what is being done right now."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def error_line(message: str) -> None:
    """Print `shoal: error: …` as exactly one line on stderr, whatever the message holds."""
    one_line = " ".join(message.split())
    print(f"shoal: error: {one_line}", file=sys.stderr, flush=True)  # noqa: T201 - rich is not loaded for a plain error


def bytes_text(count: float) -> str:
    """A size as people read it: 1536 -> '1.5 KiB', 300 MiB without a fraction. Binary units, as `free -h` prints."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return (
                f"{count:.0f} {unit}" if unit == "B" or (abs(count) >= 10 and unit != "GiB") else f"{count:.1f} {unit}"
            )
        count /= 1024
    return f"{count:.1f} TiB"
