"""Reading the PC's counters from /proc and /sys, as the kernel shows them. Only ever reads.

A pod's own /proc is the PC's; its /sys is not enough (runtimes hide the throttle counters and other pods' cgroups), so
the PC's is mounted read-only, and `Places` says where. What is not there says nothing: a PC without a battery is not on
battery.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal_stage.agent.observation import Readings

_PODS: Final = ("kubepods.slice", "kubepods")
"""The cgroup of all pods: with systemd's cgroup driver, and without."""
_MICROSECONDS: Final = 1e-6
_MILLISECONDS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Places:
    """Where the PC's files are."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    run: Path = Path("/run")

    @classmethod
    def of_host(cls, root: Path) -> Places:
        """In a pod: /sys and /run of the PC below `root`."""
        return cls(sys=root / "sys", run=root / "run")


def read(places: Places, at: float, person: bool | None) -> Readings:
    """All counters now."""
    cpus, busy = _busy(places.proc / "stat")
    return Readings(
        at=at,
        cpus=cpus,
        busy=busy,
        pods=_pods(places.sys / "fs/cgroup"),
        throttled=_throttled(places.sys / "devices/system/cpu"),
        on_battery=_on_battery(places.sys / "class/power_supply"),
        person=person,
    )


def boot_id(places: Places) -> str:
    """Another one after each start of the PC."""
    return _text(places.proc / "sys/kernel/random/boot_id")


def _busy(stat: Path) -> tuple[int, float]:
    """Cores, and CPU seconds that were neither idle nor waiting for a disk nor stolen by a hypervisor."""
    cpus, busy = 0, 0.0
    for line in _text(stat).splitlines():
        name, *counts = line.split()
        if name == "cpu":
            user, nice, system, _idle, _iowait, irq, softirq = (int(count) for count in counts[:7])
            busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        elif name.startswith("cpu"):
            cpus += 1
    return cpus, busy


def _pods(cgroups: Path) -> float | None:
    for name in _PODS:
        for line in _text(cgroups / name / "cpu.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == "usage_usec":
                return int(value) * _MICROSECONDS
    return None


def _throttled(cpus: Path) -> float:
    """Of the core, or its package, that was held back for longest."""
    files = [*cpus.glob("cpu*/thermal_throttle/core_throttle_total_time_ms")]
    files += cpus.glob("cpu*/thermal_throttle/package_throttle_total_time_ms")
    return max((int(_text(file) or 0) * _MILLISECONDS for file in files), default=0.0)


def _on_battery(supplies: Path) -> bool:
    """Whether a battery of the PC itself discharges and no supply is plugged in. A mouse has a battery too."""
    discharging, plugged = False, False
    for supply in sorted(supplies.glob("*")):
        kind = _text(supply / "type")
        if kind == "Battery" and _text(supply / "scope") != "Device":
            discharging = discharging or _text(supply / "status") == "Discharging"
        elif kind in ("Mains", "USB"):
            plugged = plugged or _text(supply / "online") == "1"
    return discharging and not plugged


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
