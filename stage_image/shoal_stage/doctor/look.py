"""Looks at this machine's files. `root` stands for `/`, so that a test can show it another machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from shoal_stage.doctor.surroundings import DeviceFile, Surroundings

_INTEL: Final = "0x8086"
_DISPLAY, _ACCELERATOR = "0x03", "0x12"
_DRIVERS: Final = ("xe", "i915", "intel_vpu")
_CLOCK_UNKNOWN: Final = 5
"""adjtimex's TIME_ERROR: nobody disciplines the clock."""


def look(cache: Path, root: Path = Path("/")) -> Surroundings:
    """Everything but the devices' tests and the links."""
    memory = _meminfo(root / "proc/meminfo")
    limit = _number(root / "sys/fs/cgroup/memory.max")
    used = _number(root / "sys/fs/cgroup/memory.current") or 0
    total = memory.get("MemTotal", 0)
    free = memory.get("MemAvailable", 0)
    if limit is not None and limit < total:
        total, free = limit, max(min(free, limit - used), 0)
    place = _existing(cache)
    return Surroundings(
        openvino=version("openvino"),
        openvino_wanted=_wanted(),
        device_names=openvino_devices(),
        gpus=_on_bus(root, _DISPLAY),
        npus=_on_bus(root, _ACCELERATOR),
        modules=frozenset(name for name in _DRIVERS if (root / "sys/module" / name).is_dir()),
        render_files=_device_files(root / "dev/dri", "renderD*"),
        accel_files=_device_files(root / "dev/accel", "accel*"),
        groups=frozenset({*os.getgroups(), os.getegid()}),
        user=os.geteuid(),
        memory_total=total,
        memory_free=free,
        swap_used=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        cache=str(cache),
        cache_free=shutil.disk_usage(place).free,
        cache_writable=os.access(place, os.W_OK | os.X_OK),
        clock=time.time(),
        clock_synchronised=_clock_synchronised(),
    )


def openvino_devices() -> dict[str, str]:
    """What OpenVINO can use, with each device's own name."""
    import openvino as ov

    core = ov.Core()
    return {device: str(core.get_property(device, "FULL_DEVICE_NAME")) for device in core.available_devices}


def _wanted() -> str:
    """The release that this package was tried with; empty in an image, which holds that very one."""
    try:
        lines = requires("shoal") or ()
    except PackageNotFoundError:
        return ""
    for line in lines:
        if line.startswith("openvino=="):
            return line.removeprefix("openvino==").split(";")[0].strip()
    return ""


def _on_bus(root: Path, device_class: str) -> tuple[str, ...]:
    """The kernel driver of each Intel device of a class on the PCI bus, "" for one without."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor") == _INTEL and _text(device / "class").startswith(device_class):
            driver = device / "driver"
            found.append(driver.resolve().name if driver.exists() else "")
    return tuple(found)


def _device_files(folder: Path, pattern: str) -> tuple[DeviceFile, ...]:
    return tuple(
        DeviceFile(str(path), path.stat().st_gid, os.access(path, os.R_OK | os.W_OK))
        for path in sorted(folder.glob(pattern))
    )


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there already."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.is_dir())


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name."""
    found = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _clock_synchronised() -> bool | None:
    """What the kernel says of its clock; None where it cannot be asked."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # struct timex is 208 bytes on 64-bit Linux; with modes 0 nothing is changed.
        state = int(libc.adjtimex(ctypes.create_string_buffer(256)))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _CLOCK_UNKNOWN


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
