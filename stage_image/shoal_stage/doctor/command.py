"""`python -m shoal_stage doctor`, which is also what `shoal doctor` runs: gather, examine, print."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.errors import ResourceError
from shoal_stage.doctor.device_test import test_device
from shoal_stage.doctor.findings import Finding, Level, as_json, examine, node_annotations, passes
from shoal_stage.doctor.link import listen, measure
from shoal_stage.doctor.look import look
from shoal_stage.doctor.surroundings import Surroundings

_MARKS = {Level.OK: "ok     ", Level.NOTE: "note   ", Level.WARNING: "warning", Level.ERROR: "ERROR  "}


async def examine_machine(
    cache: Path, peers: Sequence[str], device: str | None
) -> tuple[Surroundings, tuple[Finding, ...]]:
    """Look, test `device` (None: every one that OpenVINO has), measure the links."""
    found = look(cache)
    wanted = [name for name in found.device_names if device in (None, name.split(".")[0])]
    tests = [await asyncio.to_thread(test_device, name) for name in wanted]
    links = [await measure(peer) for peer in peers]
    found = replace(found, tests=tuple(tests), links=tuple(links))
    return found, examine(found)


def in_words(found: Surroundings, findings: Sequence[Finding]) -> str:
    """One line a finding, with its cure under it."""
    width = max(len(each.about) for each in findings)
    lines = []
    for each in findings:
        lines.append(f"{_MARKS[each.level]}  {each.about:<{width}}  {each.text}")
        if each.cure:
            lines.append(f"{'':9}{'':<{width}}  -> {each.cure}")
    if noted := node_annotations(found, findings):
        words = " ".join(f"{key}={value}" for key, value in noted.items())
        lines.append(f"\nfor the planner: kubectl annotate --overwrite node NAME {words}")
    return "\n".join(lines)


def doctor(*, cache: Path, peers: Sequence[str], device: str | None, as_text: bool) -> None:
    """Print the findings. Raises ResourceError when a stage on `device` (None: on any) must not start."""
    found, findings = asyncio.run(examine_machine(cache, peers, device))
    sys.stdout.write((in_words(found, findings) if as_text else as_json(found, findings)) + "\n")
    sys.stdout.flush()
    if not passes(findings, device):
        first = next(each for each in findings if each.level is Level.ERROR and not passes((each,), device))
        raise ResourceError(f"this machine is not fit for a stage: {first.about}: {first.text}; {first.cure}")


def doctor_parser() -> argparse.ArgumentParser:
    """The options of `python -m shoal_stage doctor`."""
    parser = argparse.ArgumentParser(prog="python -m shoal_stage doctor", allow_abbrev=False)
    parser.add_argument("--device", choices=["CPU", "GPU", "NPU"], help="only this device must be fit")
    parser.add_argument("--peer", action="append", default=[], metavar="HOST:PORT", help="a listening doctor")
    parser.add_argument("--listen", metavar="[HOST]:PORT", help="answer other doctors until stopped")
    parser.add_argument("--cache", type=Path, default=Path("/cache"), metavar="DIR", help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="findings and facts as JSON")
    return parser


def doctor_command(arguments: Sequence[str]) -> None:
    """Parse and run. Raises ResourceError."""
    options = doctor_parser().parse_args(arguments)
    if options.listen is not None:
        asyncio.run(listen(options.listen))
        return
    doctor(cache=options.cache, peers=options.peer, device=options.device, as_text=not options.json)
