"""The doctor, once after each start of the PC and for each version of shoal, when it disturbs nobody; and what of its
report becomes annotations of the Node object.

It runs as a process of its own, whose memory goes with it. In a pod it sees the devices that the pod was given: of one
that it did not see it says nothing, and what somebody else has written of that stays.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shoal import __version__
from shoal.errors import ResourceError
from shoal.plan.node_annotations import GBPS, LINK_MBPS, LINK_MS, PREFIX, REFUSED
from shoal_stage.agent.observation import Observation
from shoal_stage.agent.use import Use

CHECKED: Final = f"{PREFIX}doctor"
"""The version and the start of the PC that the doctor has looked at."""
QUIET: Final = 0.25
"""Share of all cores: where more is computed, a stage or a person would be disturbed, and speeds would look low."""
PEERS: Final = 4
"""Other nodes to which the way is measured: each node is measured by as many, however large the office."""
SECONDS: Final = 300.0

log = logging.getLogger(__name__)


def name_of(boot: str) -> str:
    """What CHECKED says when this version has looked since this start of the PC."""
    return f"{__version__} {boot}"


def may_run(use: Use, seen: Observation) -> bool:
    """Whether the doctor disturbs nobody now."""
    return not use.in_use and not use.pressing and seen.load < QUIET


def annotations_of(report: Mapping[str, Any], before: Mapping[str, str], checked: str) -> dict[str, str | None]:
    """What is to be written of a doctor's report (its JSON); None removes. `before` is what the node says."""
    found: Mapping[str, str] = report["annotations"]
    tested = {str(test["device"]).partition(".")[0] for test in report["surroundings"]["tests"]}
    refused = {name for name in before.get(REFUSED, "").split(",") if name} - tested
    refused |= {name for name in found.get(REFUSED, "").split(",") if name in tested}
    wanted: dict[str, str | None] = {CHECKED: checked, REFUSED: ",".join(sorted(refused)) or None}
    for device in sorted(tested):
        key = f"{GBPS}{device.lower()}"
        wanted[key] = found.get(key)
    wanted |= {key: found[key] for key in (LINK_MS, LINK_MBPS) if key in found}
    return {key: value for key, value in wanted.items() if before.get(key) != value}


def neighbours(addresses: Sequence[str], mine: str) -> list[str]:
    """The PEERS addresses that follow one's own in a ring of all: everybody measures, and is measured, as often."""
    others = sorted(set(addresses) - {mine})
    first = sum(each < mine for each in others)
    return (others[first:] + others[:first])[:PEERS]


async def peers_of(service: str, mine: str) -> list[str]:
    """HOST:PORT of the doctors to measure, from the headless Service (`name:port`) of all agents."""
    host, _, port = service.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        log.warning("%s names no other agent, so no link is measured: %s", service, error)
        return []
    addresses = neighbours([str(each[4][0]) for each in found], mine)
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in addresses]


async def examine(cache: Path, peers: Sequence[str], seconds: float = SECONDS) -> dict[str, Any]:
    """Run the doctor; its report. Raises ResourceError when there is none."""
    command = [sys.executable, "-m", "shoal_stage", "doctor", "--json", f"--cache={cache}"]
    process = await asyncio.create_subprocess_exec(
        *command, *(f"--peer={peer}" for peer in peers), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(seconds):
            said, complaint = await process.communicate()
    except TimeoutError as error:
        raise ResourceError(f"the doctor has not ended after {seconds:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        # One that found a fault ends with an error, behind its report.
        report: dict[str, Any] = json.loads(said)
    except ValueError as error:
        lines = complaint.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise ResourceError(f"the doctor made no report: {lines[-1]}") from error
    for each in report["findings"]:
        if each["level"] in ("warning", "error"):
            log.warning("%s: %s; %s", each["about"], each["text"], each["cure"])
    return report
