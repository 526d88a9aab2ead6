"""The committed stubs are what stage.proto generates today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STUBS = ("stage_pb2.py", "stage_pb2.pyi", "stage_pb2_grpc.py")


def test_stubs_are_generated_from_the_proto(tmp_path):
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}"]
    command += [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([*command, "shoal/wire/stage.proto"], cwd=ROOT, check=True, timeout=60)
    for name in STUBS:
        fresh = (tmp_path / "shoal/wire" / name).read_text()
        assert (ROOT / "shoal/wire" / name).read_text() == fresh, f"{name} is stale: run `make generate`"
