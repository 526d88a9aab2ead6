"""docs/k3s.md: every block of it that can run on an office of this machine is run, in order, as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from testcluster.serving_office import ROOT, Serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200, func_only=True)]
BLOCK = re.compile(r"^<!-- run -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUIDE = (ROOT / "docs/k3s.md").read_text()


def test_the_commands_of_the_guide_run_as_they_are_printed(office: Serving, tmp_path: Path) -> None:
    for folder in ("charts", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    tools = tmp_path / "bin"
    tools.mkdir()
    for command in (office.kubectl, office.helm):
        (tools / command.program.name).symlink_to(command.program)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(office.kubectl.kubeconfig.path),
    }
    blocks = BLOCK.findall(GUIDE)
    assert len(blocks) >= 7
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=700, check=False,
        )  # fmt: skip
        print(f"--- {block}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, block
        if "stream" in block:
            assert "data: [DONE]" in done.stdout
