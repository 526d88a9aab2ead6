"""One command of this machine, run to its end: what it printed, or an error that holds what it said."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

DEADLINE_S: Final = 120.0


class RunFailed(Exception):
    """A command ended with an error, or not in time; the text holds the end of what it printed."""


def run(
    *command: str | Path,
    deadline_s: float = DEADLINE_S,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Run a command; returns what it printed. Raises RunFailed."""
    words: Sequence[str] = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
            env=None if environment is None else dict(environment),
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{' '.join(words[:6])} took longer than {deadline_s:.0f} s") from None
    if done.returncode != 0:
        last_words = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise RunFailed(f"{' '.join(words)} ended with {done.returncode}:\n{last_words}")
    return done.stdout
