"""What the doctor finds. Pure: each check looks at the surroundings, says what is so, and what to do if it is not well.

ERROR: a stage on that device must not start. WARNING: it will run, and worse than it could. NOTE: worth knowing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from shoal.plan.document import Device
from shoal.plan.node_annotations import NodeFindings, to_annotations
from shoal_stage.doctor.surroundings import DeviceFile, DeviceTest, Surroundings

LEAST_COSINE: Final = 0.99
LEAST_CACHE: Final = 2 << 30
LEAST_MEMORY: Final = 2 << 30
SLOW_LINK_MBPS: Final = 30.0
"""A gigabit link gives 110, Wi-Fi 6 some 80, a 100 Mb/s link 12."""
FAR_MS: Final = 5.0
LEAST_GBPS: Final = {"CPU": 2.0, "GPU": 15.0, "NPU": 5.0}
"""Weights read a second. Lunar Lake's memory gives some 100 to the GPU; what is far below runs in a slow state, or
elsewhere than it says."""
_BORN: Final = 1_767_225_600
"""2026-01-01: no clock that is right says less."""
_AHEAD: Final = 3_155_760_000


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """`about`: what was looked at; `device`: whom it concerns, "" for all; `cure`: what to do, "" when all is well."""

    about: str
    level: Level
    text: str
    cure: str = ""
    device: str = ""


def examine(found: Surroundings) -> tuple[Finding, ...]:
    """All findings, in the order in which somebody would look."""
    return tuple(
        finding
        for check in (_openvino, _gpu, _npu, _devices, _memory, _cache, _clock, _network)
        for finding in check(found)
    )


def refused_devices(findings: Sequence[Finding]) -> frozenset[str]:
    """Devices that must not be used."""
    return frozenset(each.device for each in findings if each.level is Level.ERROR and each.device)


def passes(findings: Sequence[Finding], device: str | None) -> bool:
    """Whether a stage may start on `device`; None: whether nothing at all is wrong."""
    return not any(each.level is Level.ERROR and (device is None or each.device in ("", device)) for each in findings)


def as_json(found: Surroundings, findings: Sequence[Finding]) -> str:
    """Findings and what they were made from."""
    facts = asdict(found)
    facts |= {
        "modules": sorted(found.modules),
        "groups": sorted(found.groups),
        "device_names": dict(found.device_names),
    }
    report = {
        "findings": [asdict(each) for each in findings],
        "surroundings": facts,
        "annotations": node_annotations(found, findings),
    }
    return json.dumps(report, indent=2)


def node_annotations(found: Surroundings, findings: Sequence[Finding]) -> dict[str, str]:
    """What the planner shall know of this node, as annotations of its Node object."""
    links = [link for link in found.links if not link.error]
    tested = [test for test in found.tests if not test.error]
    refused = refused_devices(findings)
    return to_annotations(
        NodeFindings(
            refused=frozenset(Device(name) for name in refused if name in Device.__members__),
            link_ms=max((link.round_trip_ms for link in links), default=None),
            link_mbps=min((link.megabytes_per_second for link in links), default=None),
            gbps={
                Device(device): test.gigabytes_per_second
                for test in reversed(tested)  # of two GPUs the first one counts
                if (device := test.device.partition(".")[0]) not in refused
            },
        )
    )


# ---- checks


def _openvino(found: Surroundings) -> Iterator[Finding]:
    devices = ", ".join(f"{name} ({text})" for name, text in found.device_names.items()) or "no device"
    if found.openvino_wanted and found.openvino.split("-")[0] != found.openvino_wanted:
        yield Finding(
            "OpenVINO",
            Level.ERROR,
            f"version {found.openvino}, shoal was tried with {found.openvino_wanted}: fusions differ between releases",
            f"install openvino=={found.openvino_wanted}",
        )
    else:
        yield Finding("OpenVINO", Level.OK, f"version {found.openvino}, sees {devices}")


def _gpu(found: Surroundings) -> Iterator[Finding]:
    yield from _hardware(found, "GPU", found.gpus, ("xe", "i915"), found.render_files, "/dev/dri/renderD128", "gpu")


def _npu(found: Surroundings) -> Iterator[Finding]:
    yield from _hardware(found, "NPU", found.npus, ("intel_vpu",), found.accel_files, "/dev/accel/accel0", "npu")


def _hardware(
    found: Surroundings,
    device: str,
    drivers: Sequence[str],
    known: Sequence[str],
    files: Sequence[DeviceFile],
    example: str,
    plugin: str,
) -> Iterator[Finding]:
    """Whether OpenVINO has it; if not, from the PCI bus over kernel driver, file and group, what is missing first."""
    words = " or ".join(known)
    bound = [name for name in drivers if name in known]

    def missing(text: str, cure: str) -> Finding:
        return Finding(device, Level.ERROR, text, cure, device)

    if any(name.split(".")[0] == device for name in found.device_names):
        yield Finding(device, Level.OK, ", ".join([*bound, *(file.path for file in files)]) or "there", device=device)
    elif not drivers:
        yield Finding(device, Level.NOTE, f"this machine has no Intel {device}", device=device)
    elif not bound:
        held = ", ".join(name for name in drivers if name) or "no driver"
        yield missing(
            f"an Intel {device} is there, but {held} holds it instead of {words}",
            f"load the kernel driver ({words}); Lunar Lake needs Linux 6.8 or later, Panther Lake 6.17",
        )
    elif not files:
        yield missing(
            f"the driver {bound[0]} runs, but there is no {example}",
            f"in a container: ask for the device plugin's resource, or pass the device in ({plugin}.intel.com)",
        )
    elif not any(file.usable for file in files):
        file = files[0]
        yield missing(
            f"{file.path} belongs to group {file.group}, of which this process (user {found.user}) is no member",
            f"add the user to the group (usermod -aG render); in a cluster: supplementalGroups: [{file.group}]",
        )
    else:
        yield missing(
            f"driver {bound[0]} and {files[0].path} are fine, but OpenVINO {found.openvino} does not see the {device}",
            f"install or update its user-space driver ({_USER_SPACE[device]})",
        )


_USER_SPACE: Final = {
    "GPU": "intel-opencl-icd, intel-level-zero-gpu",
    "NPU": "intel-driver-compiler-npu, intel-level-zero-npu",
}


def _devices(found: Surroundings) -> Iterator[Finding]:
    for test in found.tests:
        yield _tested(test)
    if found.tests and not any(test.device != "CPU" and not test.error for test in found.tests):
        yield Finding("devices", Level.NOTE, "only the CPU computes here: a GPU reads weights several times as fast")


def _tested(test: DeviceTest) -> Finding:
    device = test.device.split(".")[0]

    def wrong(text: str, cure: str) -> Finding:
        return Finding(f"self-test {test.device}", Level.ERROR, text, cure, device)

    if test.error:
        return wrong(f"it cannot run the test: {test.error}", "update its driver, or leave this device out")
    if not test.executes or any(name.split(".")[0] != device for name in test.executes):
        where = ", ".join(test.executes) or "nothing"
        return wrong(f"asked for {test.device}, OpenVINO runs on {where}", "update its driver; never use AUTO")
    if test.cosine < LEAST_COSINE:
        return wrong(
            f"it computes wrong values (cosine {test.cosine:.3f} with the right answer, {LEAST_COSINE} is due)",
            "update its driver; until then it must not be used",
        )
    speed = f"{test.gigabytes_per_second:.1f} GB/s of weights"
    least = LEAST_GBPS.get(device, 0.0)
    if test.gigabytes_per_second < least:
        return wrong(
            f"it is right, but reads only {speed}, {least:g} is the least for it",
            "look for another load, a power limit, or a battery saver; then run the doctor again",
        )
    return Finding(
        f"self-test {test.device}", Level.OK, f"right, {speed}, runs on {', '.join(test.executes)}", "", device
    )


def _memory(found: Surroundings) -> Iterator[Finding]:
    text = f"{_gib(found.memory_free)} free of {_gib(found.memory_total)}"
    if found.memory_free < LEAST_MEMORY:
        yield Finding(
            "memory", Level.WARNING, text, "close what takes it, or raise the container's limit: a stage needs room"
        )
    else:
        yield Finding("memory", Level.OK, text)
    if found.swap_used > found.memory_total // 20:
        yield Finding(
            "swap", Level.WARNING, f"{_gib(found.swap_used)} are swapped out: a stage that is swapped is very slow",
            "close what takes the memory, or give this node a lower placement.maxMemoryFraction",
        )  # fmt: skip


def _cache(found: Surroundings) -> Iterator[Finding]:
    if not found.cache_writable:
        yield Finding(
            "cache", Level.ERROR, f"{found.cache} cannot be written to", "give it to this user, or set XDG_CACHE_HOME"
        )
    elif found.cache_free < LEAST_CACHE:
        yield Finding(
            "cache", Level.WARNING, f"{found.cache} has {_gib(found.cache_free)} free",
            "make room: a stage keeps its blocks and compiled kernels there",
        )  # fmt: skip
    else:
        yield Finding("cache", Level.OK, f"{found.cache}, {_gib(found.cache_free)} free")


def _clock(found: Surroundings) -> Iterator[Finding]:
    if not _BORN < found.clock < _BORN + _AHEAD:
        yield Finding(
            "clock", Level.ERROR, "it is years off: certificates will not be valid yet, or not any more",
            "set it, and let NTP keep it (timedatectl set-ntp true)",
        )  # fmt: skip
    elif found.clock_synchronised is False:
        yield Finding("clock", Level.WARNING, "nothing keeps it right", "let NTP keep it (timedatectl set-ntp true)")
    else:
        yield Finding("clock", Level.OK, "synchronised" if found.clock_synchronised else "plausible")


def _network(found: Surroundings) -> Iterator[Finding]:
    for link in found.links:
        about = f"link to {link.peer}"
        if link.error:
            yield Finding(about, Level.ERROR, f"it cannot be measured: {link.error}", "is a doctor listening there?")
            continue
        text = f"{link.round_trip_ms:.2f} ms, {link.megabytes_per_second:.0f} MB/s"
        if link.megabytes_per_second < SLOW_LINK_MBPS or link.round_trip_ms > FAR_MS:
            yield Finding(
                about, Level.WARNING, f"{text}: prompts and hops will be slow",
                "use a cable and a gigabit switch; with Wi-Fi, 5 GHz and few walls",
            )  # fmt: skip
        else:
            yield Finding(about, Level.OK, text)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
