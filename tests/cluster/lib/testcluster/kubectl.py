"""kubectl as a person types it, and Helm likewise: what they print is a part of what is tested."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testcluster.kubeconfig import Kubeconfig

_DEADLINE_S: Final = 120.0


class CommandFailed(Exception):
    """A command ended with an error; the text holds what it printed."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that talks to the cluster as one user, with its caches and settings in a folder of the test."""

    program: Path
    kubeconfig: Kubeconfig
    home: Path

    def __call__(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run it; returns what it printed, raises CommandFailed unless `check` is False (then errors are included)."""
        done = subprocess.run(
            [str(self.program), *arguments],
            input=stdin,
            env={"PATH": os.defpath, "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig.path)},
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        if check and done.returncode != 0:
            raise CommandFailed(f"{self.program.name} {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout if check else done.stdout + done.stderr
