"""`python -m chaos [--seed N] [--minutes M] [--clients N] [--report FILE]`: hit a local pipeline while it is asked.

Exit code 0: every answer was right or ended with a proper error, nothing hung, nothing leaked. The report says what was
done to the pipeline, how requests ended, and what must not have happened; the same seed gives the same blows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.models import smollm2
from chaos.run import Report, run, stop_at_signal


def main(argv: list[str]) -> int:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args(argv)
    model = smollm2().directory

    async def body() -> Report:
        task = asyncio.create_task(run(model, folder, given.seed, given.minutes * 60, given.clients))
        stop_at_signal(task)
        return await task

    folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    try:
        report = asyncio.run(body())
    except asyncio.CancelledError:
        return 130
    document = json.dumps(report.document(), indent=2)
    if given.report is not None:
        partial = given.report.with_name(given.report.name + ".partial")
        partial.write_text(document + "\n")
        partial.replace(given.report)
    sys.stdout.write(document + "\n")
    if report.findings:
        sys.stderr.write(f"{len(report.findings)} findings; logs: {folder}\n")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
