"""Facts of this machine that the planner asks of a node: memory, cores and devices.

A container's limits count, not only what the machine has: `shoal run` in a 4 GiB container on a 64 GiB server must
plan for 4 GiB.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoal.plan import Device, NodeFacts, split_machine

NODE_NAME = "local"

LOOPBACK_MS = 0.1
"""Round trip between two processes of one machine, in milliseconds: an assumption on the high side."""

_CGROUP = Path("/sys/fs/cgroup")
_INTEL = "0x8086"


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has. `memory_free` is what can be taken without swapping, file caches counted as free."""

    memory_total: int
    memory_free: int
    cores: int
    devices: tuple[Device, ...]


def this_machine() -> Machine:
    """Look around."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    limit = _number(_CGROUP / "memory.max")
    if limit is not None:
        total = min(total, limit)
        # Reclaimable file cache counts as used in memory.current.
        used = (_number(_CGROUP / "memory.current") or 0) - _memory_stat("inactive_file")
        free = min(free, max(limit - used, 0))
    return Machine(memory_total=total, memory_free=free, cores=_cores(), devices=_devices())


def as_nodes(machine: Machine, parts: int) -> tuple[NodeFacts, ...]:
    """The machine as `parts` nodes, which share its memory and its speed."""
    whole = NodeFacts(
        name=NODE_NAME,
        devices=machine.devices,
        memory_total=machine.memory_total,
        memory_allocatable=machine.memory_total,
        memory_free=machine.memory_free,
        link_ms=LOOPBACK_MS,
    )
    return split_machine(whole, parts)


def _cores() -> int:
    """Physical cores that this process may use: the kernels gain nothing from a core's second thread."""
    allowed = len(os.sched_getaffinity(0))
    cores = min(allowed, psutil.cpu_count(logical=False) or allowed)
    quota = _text(_CGROUP / "cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def _devices() -> tuple[Device, ...]:
    """The devices by the files of their drivers; whether OpenVINO can really use one, the stage finds out."""
    devices = [Device.CPU]
    if any(_text(card / "device" / "vendor") == _INTEL for card in Path("/sys/class/drm").glob("renderD*")):
        devices.append(Device.GPU)
    if any(Path("/sys/class/accel").glob("accel*")):
        devices.append(Device.NPU)
    return tuple(devices)


def _memory_stat(field: str) -> int:
    for line in _text(_CGROUP / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == field:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
