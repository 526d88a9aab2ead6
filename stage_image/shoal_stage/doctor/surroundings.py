"""What was found on this machine: plain values, gathered by `look`, `device_test` and `link`, judged by `findings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A file in /dev that OpenVINO opens. `usable`: this process may read and write it; `group`: the file's gid."""

    path: str
    group: int
    usable: bool


@dataclass(frozen=True, slots=True)
class DeviceTest:
    """What a device did with a small model whose answer is known. `error`: it could not be run at all.

    `executes`: EXECUTION_DEVICES; `cosine`: of its answer with the right one, 1 is equal; `gigabytes_per_second`: how
    fast it read weights in a matrix-vector product, which is what decoding does.
    """

    device: str
    executes: tuple[str, ...] = ()
    cosine: float = 0.0
    gigabytes_per_second: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """The way to another node. `error`: it could not be measured."""

    peer: str
    round_trip_ms: float = 0.0
    megabytes_per_second: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One machine. `gpus` and `npus`: kernel drivers of the Intel devices on the PCI bus, "" without one.

    `modules` are the kernel drivers that are loaded; `device_names` maps OpenVINO's devices to what they call
    themselves. `clock_synchronised` None: nobody says.
    """

    openvino: str
    openvino_wanted: str
    device_names: Mapping[str, str]
    gpus: tuple[str, ...] = ()
    npus: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()
    render_files: tuple[DeviceFile, ...] = ()
    accel_files: tuple[DeviceFile, ...] = ()
    groups: frozenset[int] = frozenset()
    user: int = 0
    memory_total: int = 0
    memory_free: int = 0
    swap_used: int = 0
    cache: str = ""
    cache_free: int = 0
    cache_writable: bool = True
    clock: float = 0.0
    clock_synchronised: bool | None = None
    tests: tuple[DeviceTest, ...] = ()
    links: tuple[Link, ...] = field(default=())
