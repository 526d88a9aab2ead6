"""Where the command line keeps things: ${XDG_CACHE_HOME:-~/.cache}/shoal.

    models/<name>-<key>/     compiled model directories, made once
    checkpoints/             what was fetched to be compiled
    openvino/<digest>/       OpenVINO's compiled kernels (CACHE_DIR), one folder a model
    runs/<start>-<pid>/      one folder a `shoal run`: plan.json and the log of each process; old ones are pruned
    crashes/                 tracebacks of defects

Everything here can be deleted at any time; it is made again when it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder of everything that shoal caches; not created here."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "shoal"


def models_dir() -> Path:
    """Compiled model directories."""
    return cache_root() / "models"


def checkpoints_dir() -> Path:
    """Fetched checkpoints."""
    return cache_root() / "checkpoints"


def openvino_dir(model_digest: str) -> Path:
    """OpenVINO's CACHE_DIR for the stages of one model. Its own keys tell device and blocks apart."""
    return cache_root() / "openvino" / model_digest[:16]


def runs_dir() -> Path:
    """One folder a run."""
    return cache_root() / "runs"


def crashes_dir() -> Path:
    """Tracebacks of defects."""
    return cache_root() / "crashes"
