"""What compiling a large model takes: memory and time of one layer, and a stage of what was written.

Random weights have the cost of real ones, so no checkpoint of 140 GB is needed: the shapes of Llama 3.1 8B and 70B,
INT4, embedding, some layers and head, each in a process of its own whose peak memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.models import bench_cache
from bench.report import Report
from shoal.errors import ResourceError

TITLE = "compiling 8B and 70B shapes layer by layer: peak memory, time; a 20-layer stage of the 8B shape run once"

_DEADLINE_S = 900
_LAYERS = {"8b": 32, "70b": 80}


def run(quick: bool) -> Report:
    """Write and run; `quick` writes fewer layers, and the stage holds those."""
    report = Report()
    written = {"8b": 2 if quick else 20, "70b": 1 if quick else 4}
    for shape, layers in written.items():
        with tempfile.TemporaryDirectory(dir=bench_cache(), prefix="export-") as work:
            directory = Path(work) / "model"
            made = _child("write", shape, str(layers), str(directory))
            report.add(f"{shape}.peak_rss_gb", made["peak_rss_gb"])
            report.add(f"{shape}.seconds_per_layer", made["seconds_per_layer"])
            whole = made["seconds_of_ends"] + made["seconds_per_layer"] * _LAYERS[shape]
            report.add(f"{shape}.extrapolated_minutes", whole / 60)
            report.add(f"{shape}.layer_mb", made["layer_mb"])
            report.notes.append(
                f"{shape}: embedding, {layers} layers and head written, checked and synced; "
                f"extrapolated to {_LAYERS[shape]} layers"
            )
            if shape == "8b":
                stage = _child("stage", str(directory))
                for key, value in stage.items():
                    report.add(f"8b.stage20_{key}", value)
                report.notes.append(
                    f"the stage holds layers 0-{layers - 1} on the CPU, default precision, one sequence"
                )
    report.notes.append("weights are drawn from one pool of random numbers, so that drawing costs nothing")
    return report


def _child(*arguments: str) -> dict[str, Any]:
    """Run bench.systems.export in a process; its last line is the answer."""
    command = [sys.executable, "-m", "bench.systems.export", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ResourceError(f"{' '.join(command[2:])} was not done after {_DEADLINE_S} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ResourceError(f"{' '.join(command[2:])} failed: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
