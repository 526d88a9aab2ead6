"""Broken set-ups as the doctor meets them: files, sockets and a device's answers, from the look to the finding.

`test_doctor` holds the same against values; here a machine is broken, and the doctor must see it by itself.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest

from shoal_stage.doctor import device_test, look
from shoal_stage.doctor import link as links
from shoal_stage.doctor.findings import Finding, Level, examine, refused_devices
from shoal_stage.doctor.surroundings import Surroundings

Break = Callable[[Path, pytest.MonkeyPatch], object]

BUS = "sys/bus/pci/devices"
GPU, NPU = "0000:00:02.0", "0000:00:0b.0"
RENDER, ACCEL = "dev/dri/renderD128", "dev/accel/accel0"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PC with a GPU, an NPU and nothing wrong, as files."""
    root = tmp_path / "root"
    for address, kind, driver in ((GPU, "0x030000", "xe"), (NPU, "0x120000", "intel_vpu")):
        device = root / BUS / address
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x8086\n")
        (device / "class").write_text(f"{kind}\n")
        bind(root, address, driver)
    for file in (RENDER, ACCEL):
        (root / file).parent.mkdir(parents=True)
        (root / file).touch()
    write(root, "proc/meminfo", meminfo(free=20 << 20))
    write(root, "sys/fs/cgroup/memory.max", "max\n")
    monkeypatch.setattr(look, "openvino_devices", lambda: {"CPU": "a", "GPU": "b", "NPU": "c"})
    monkeypatch.setattr(look, "_clock_synchronised", lambda: True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    return root


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def meminfo(free: int, swapped: int = 0) -> str:
    """Counts in kB, as the kernel has them."""
    counts = {"MemTotal": 32 << 20, "MemAvailable": free, "SwapTotal": 8 << 20, "SwapFree": (8 << 20) - swapped}
    return "".join(f"{name}: {count} kB\n" for name, count in counts.items())


def bind(root: Path, address: str, driver: str | None) -> None:
    """Give the device to a kernel driver, or to none."""
    at = root / BUS / address / "driver"
    at.unlink(missing_ok=True)
    if driver is not None:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        at.symlink_to(root / "sys/bus/pci/drivers" / driver)


def sees(patch: pytest.MonkeyPatch, *devices: str) -> None:
    """What OpenVINO has: never a device whose driver or file is missing."""
    patch.setattr(look, "openvino_devices", lambda: dict.fromkeys(devices, "a device"))


def unusable(patch: pytest.MonkeyPatch, ending: str) -> None:
    """A file or folder that this process may not open: its group has somebody else."""
    allowed = os.access
    patch.setattr(os, "access", lambda path, mode: not str(path).endswith(ending) and allowed(path, mode))


def seen(root: Path, cache: Path) -> tuple[Surroundings, list[Finding]]:
    found = look.look(cache, root)
    return found, [each for each in examine(found) if each.level is not Level.OK]


def missing(device: str, what: Callable[[Path], object]) -> Break:
    """A set-up in which OpenVINO cannot have the device."""

    def broken(root: Path, patch: pytest.MonkeyPatch) -> None:
        sees(patch, *({"CPU", "GPU", "NPU"} - {device}))
        what(root)

    return broken


def wrong_group(root: Path, patch: pytest.MonkeyPatch) -> None:
    sees(patch, "CPU", "NPU")
    unusable(patch, RENDER)


MACHINES: dict[str, tuple[Break, str, str, str]] = {
    "missing device node": (
        missing("GPU", lambda root: (root / RENDER).unlink()), "GPU", "there is no /dev/dri/renderD128", "GPU",
    ),
    "wrong group": (wrong_group, "GPU", "belongs to group", "GPU"),
    "no kernel driver": (missing("GPU", lambda root: bind(root, GPU, None)), "GPU", "no driver holds it", "GPU"),
    "given to a virtual machine": (
        missing("GPU", lambda root: bind(root, GPU, "vfio-pci")), "GPU", "vfio-pci holds it", "GPU",
    ),
    "old user-space driver": (missing("GPU", lambda root: None), "GPU", "does not see the GPU", "GPU"),
    "NPU not in the container": (
        missing("NPU", lambda root: (root / ACCEL).unlink()), "NPU", "there is no /dev/accel/accel0", "NPU",
    ),
    "NPU without a driver": (missing("NPU", lambda root: bind(root, NPU, None)), "NPU", "instead of intel_vpu", "NPU"),
    "old OpenVINO": (lambda _, patch: patch.setattr(look, "version", lambda _: "2024.1.0"), "OpenVINO", "2024.1.0", ""),
    "full memory": (lambda root, _: write(root, "proc/meminfo", meminfo(1 << 20)), "memory", "1.0 GiB free", ""),
    "tight cgroup": (
        lambda root, _: write(root, "sys/fs/cgroup/memory.max", f"{1 << 30}\n"), "memory", "free of 1.0 GiB", "",
    ),
    "swapping": (
        lambda root, _: write(root, "proc/meminfo", meminfo(20 << 20, 6 << 20)), "swap", "6.0 GiB are swapped", "",
    ),
    "full disk": (
        lambda _, patch: patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30)),
        "cache", "1.0 GiB free", "",
    ),
    "cache of somebody else": (lambda _, patch: unusable(patch, "cache"), "cache", "cannot be written to", ""),
    "clock of 1970": (
        lambda _, patch: patch.setattr(look, "time", SimpleNamespace(time=lambda: 3600.0)), "clock", "years off", "",
    ),
    "clock without NTP": (
        lambda _, patch: patch.setattr(look, "_clock_synchronised", lambda: False), "clock", "nothing keeps it", "",
    ),
}  # fmt: skip


def test_nothing_is_wrong_with_a_pc_that_is_well(root: Path, tmp_path: Path) -> None:
    found, wrong = seen(root, tmp_path / "cache")
    assert wrong == []
    assert (found.gpus, found.npus) == (("xe",), ("intel_vpu",))


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_broken_is_found(name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, about, text, refused = MACHINES[name]
    cache = tmp_path / "cache"
    cache.mkdir()
    broken(root, monkeypatch)
    _, wrong = seen(root, cache)
    assert [each.about for each in wrong] == [about]
    assert text in wrong[0].text
    assert wrong[0].cure
    assert refused_devices(wrong) == ({refused} if refused else set())


# ---- devices: the doctor's own model, on a device that cheats


class Cheating(ov.Core):
    """Whatever is asked for runs on the CPU, as AUTO would do without a word."""

    def compile_model(self, model, device, config):
        return super().compile_model(model, "CPU", config)


def computes(patch: pytest.MonkeyPatch, wrongly: Callable[..., tuple[object, ...]]) -> None:
    """The device computes with these values in the place of what it was given."""
    rightly = device_test._model
    patch.setattr(device_test, "_model", lambda *weights: rightly(*wrongly(*weights)))


DEVICES: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], object], str]] = {
    "wrong logits": (
        "CPU",
        lambda patch: computes(patch, lambda up, down, scale: (up, np.roll(down, 1, axis=0), scale)),
        "it computes wrong values",
    ),
    "not numbers": (
        "CPU",
        lambda patch: computes(patch, lambda up, down, scale: (up, down, np.float32(np.nan))),
        "it computes wrong values (cosine 0.000",
    ),
    "silently slow": ("CPU", lambda patch: patch.setattr(device_test, "_timed", lambda *_: 1.0), "reads only 0.0 GB/s"),
    "CPU in the GPU's place": (
        "GPU",
        lambda patch: patch.setattr(device_test.ov, "Core", Cheating),
        "asked for GPU, OpenVINO runs on CPU",
    ),
    "a device that is not there": ("GPU.7", lambda patch: None, "it cannot run the test"),
}


@pytest.fixture
def small_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor's model, small: what is looked at here are answers, and any speed is enough."""
    monkeypatch.setattr(device_test, "_WIDTH", 64)
    monkeypatch.setattr(device_test, "_ROWS", 128)
    monkeypatch.setattr(device_test, "_timed", lambda *_: 1e-9)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_that_cheats_is_refused(
    name: str, small_test: None, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, broken, text = DEVICES[name]
    found, _ = seen(root, tmp_path / "cache")
    assert [each.level for each in examine(replace(found, tests=(device_test.test_device("CPU"),)))][3] is Level.OK
    broken(monkeypatch)
    wrong = [each for each in examine(replace(found, tests=(device_test.test_device(device),))) if each.cure]
    assert [each.level for each in wrong] == [Level.ERROR]
    assert text in wrong[0].text
    assert refused_devices(wrong) == {device.partition(".")[0]}


# ---- links


async def test_a_slow_link_is_called_slow(monkeypatch: pytest.MonkeyPatch, root: Path, tmp_path: Path) -> None:
    """The other side takes what comes at 10 MB/s, as a network of 100 Mb/s does."""
    monkeypatch.setattr(links, "BULK", 1 << 20)

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(links.PINGS):
            writer.write(await reader.readexactly(links.PING))
        begun = asyncio.get_running_loop().time()
        for number in range(1, 17):
            await reader.readexactly(links.BULK // 16)
            await asyncio.sleep(begun + number * links.BULK / 16 / 10e6 - asyncio.get_running_loop().time())
        writer.write(b".")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(slowly, "127.0.0.1", 0)
    async with server:
        measured = await links.measure(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    found, _ = seen(root, tmp_path / "cache")
    (wrong,) = [each for each in examine(replace(found, links=(measured,))) if each.level is not Level.OK]
    assert wrong.level is Level.WARNING
    assert "prompts and hops will be slow" in wrong.text
