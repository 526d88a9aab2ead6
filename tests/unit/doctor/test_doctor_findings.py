"""Broken set-ups, each with the finding that it must give; links over real sockets; annotations there and back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest

from shoal.plan.document import Device
from shoal.plan.node_annotations import NodeFindings, from_annotations, to_annotations
from shoal_operator.nodes import view_nodes
from shoal_stage.doctor.findings import Level, as_json, examine, node_annotations, passes, refused_devices
from shoal_stage.doctor.link import answer, measure
from shoal_stage.doctor.look import look
from shoal_stage.doctor.surroundings import DeviceFile, DeviceTest, Link, Surroundings

GIB = 1 << 30
HEALTHY = Surroundings(
    openvino="2026.4.1-20450-abc",
    openvino_wanted="2026.4.1",
    device_names={"CPU": "Intel Core Ultra 7 268V", "GPU": "Intel Arc 140V", "NPU": "Intel AI Boost"},
    gpus=("xe",),
    npus=("intel_vpu",),
    modules=frozenset({"xe", "intel_vpu"}),
    render_files=(DeviceFile("/dev/dri/renderD128", 992, True),),
    accel_files=(DeviceFile("/dev/accel/accel0", 992, True),),
    groups=frozenset({1000, 992}),
    user=1000,
    memory_total=32 * GIB,
    memory_free=20 * GIB,
    cache="/home/user/.cache/shoal",
    cache_free=100 * GIB,
    clock=1_790_000_000.0,
    clock_synchronised=True,
    tests=(
        DeviceTest("CPU", ("CPU",), 1.0, 60.0),
        DeviceTest("GPU", ("GPU.0",), 0.9999, 95.0),
        DeviceTest("NPU", ("NPU",), 0.9998, 40.0),
    ),
    links=(Link("pc-02:9090", 0.4, 112.0),),
)


def with_test(device: str, **changes: object) -> Surroundings:
    tests = tuple(replace(test, **changes) if test.device == device else test for test in HEALTHY.tests)
    return replace(HEALTHY, tests=tests)


def without(device: str, **changes: object) -> Surroundings:
    """OpenVINO does not see the device."""
    names = {name: text for name, text in HEALTHY.device_names.items() if name != device}
    tests = tuple(test for test in HEALTHY.tests if test.device != device)
    return replace(HEALTHY, device_names=names, tests=tests, **changes)


BROKEN = {
    "wrong OpenVINO": (replace(HEALTHY, openvino="2025.1.0"), Level.ERROR, "version 2025.1.0, shoal was tried", ""),
    "no GPU driver": (without("GPU", gpus=("",)), Level.ERROR, "no driver holds it instead of xe or i915", "GPU"),
    "GPU given to vfio": (without("GPU", gpus=("vfio-pci",)), Level.ERROR, "vfio-pci holds it", "GPU"),
    "missing device node": (without("GPU", render_files=()), Level.ERROR, "there is no /dev/dri/renderD128", "GPU"),
    "wrong group": (
        without("GPU", render_files=(DeviceFile("/dev/dri/renderD128", 992, False),)),
        Level.ERROR, "belongs to group 992", "GPU",
    ),
    "old user-space driver": (
        without("GPU"), Level.ERROR, "does not see the GPU", "GPU",
    ),
    "NPU without its driver": (without("NPU", npus=("",)), Level.ERROR, "instead of intel_vpu", "NPU"),
    "NPU not passed in": (without("NPU", accel_files=()), Level.ERROR, "there is no /dev/accel/accel0", "NPU"),
    "wrong answers": (with_test("NPU", cosine=0.41), Level.ERROR, "wrong values (cosine 0.410", "NPU"),
    "not numbers": (with_test("GPU", cosine=0.0), Level.ERROR, "wrong values", "GPU"),
    "CPU fallback": (with_test("GPU", executes=("CPU",)), Level.ERROR, "OpenVINO runs on CPU", "GPU"),
    "silently slow": (with_test("GPU", gigabytes_per_second=3.0), Level.ERROR, "reads only 3.0 GB/s", "GPU"),
    "cannot compile": (with_test("NPU", error="Compilation failed"), Level.ERROR, "Compilation failed", "NPU"),
    "little memory": (replace(HEALTHY, memory_free=GIB), Level.WARNING, "1.0 GiB free of 32.0 GiB", ""),
    "swapping": (replace(HEALTHY, swap_used=4 * GIB), Level.WARNING, "4.0 GiB are swapped out", ""),
    "full disk": (replace(HEALTHY, cache_free=GIB), Level.WARNING, "has 1.0 GiB free", ""),
    "cache of another user": (replace(HEALTHY, cache_writable=False), Level.ERROR, "cannot be written to", ""),
    "clock of 1970": (replace(HEALTHY, clock=10_000.0), Level.ERROR, "years off", ""),
    "free-running clock": (replace(HEALTHY, clock_synchronised=False), Level.WARNING, "nothing keeps it right", ""),
    "slow link": (replace(HEALTHY, links=(Link("pc-02:9090", 1.0, 11.5),)), Level.WARNING, "12 MB/s", ""),
    "far node": (replace(HEALTHY, links=(Link("pc-02:9090", 38.0, 100.0),)), Level.WARNING, "38.00 ms", ""),
    "dead link": (replace(HEALTHY, links=(Link("pc-02:9090", error="refused"),)), Level.ERROR, "refused", ""),
}  # fmt: skip


def test_a_healthy_machine_has_nothing_to_say() -> None:
    findings = examine(HEALTHY)
    assert {each.level for each in findings} == {Level.OK}
    assert passes(findings, None)
    assert len(findings) == 10


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_set_up_gives_its_finding_and_only_that(name: str) -> None:
    found, level, text, device = BROKEN[name]
    wrong = [each for each in examine(found) if each.level is not Level.OK]
    assert len(wrong) == 1
    assert (wrong[0].level, wrong[0].device) == (level, device)
    assert text in wrong[0].text
    assert wrong[0].cure
    assert refused_devices(wrong) == ({device} if device and level is Level.ERROR else set())
    assert passes(wrong, None) is (level is not Level.ERROR)


def test_a_stage_on_the_cpu_may_start_beside_a_broken_gpu() -> None:
    findings = examine(without("GPU", gpus=("",)))
    assert passes(findings, "CPU")
    assert not passes(findings, "GPU")


def test_a_machine_without_gpu_and_npu_is_fit_and_says_what_it_lacks() -> None:
    plain = replace(
        HEALTHY, gpus=(), npus=(), device_names={"CPU": "x"}, tests=HEALTHY.tests[:1], links=()
    )  # fmt: skip
    findings = examine(plain)
    assert passes(findings, None)
    assert [each.text for each in findings if each.level is Level.NOTE] == [
        "this machine has no Intel GPU",
        "this machine has no Intel NPU",
        "only the CPU computes here: a GPU reads weights several times as fast",
    ]


def machine(root, *, driver="xe", vendor="0x8086"):
    """A machine as files, for `look`."""
    bus = root / "sys/bus/pci/devices/0000:00:02.0"
    bus.mkdir(parents=True)
    (bus / "vendor").write_text(f"{vendor}\n")
    (bus / "class").write_text("0x030000\n")
    if driver:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
        (bus / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
        (root / "sys/module" / driver).mkdir(parents=True)
    (root / "dev/dri").mkdir(parents=True)
    (root / "dev/dri/renderD128").touch()
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(
        "MemTotal: 32000000 kB\nMemAvailable: 1000 kB\nSwapTotal: 8 kB\nSwapFree: 8 kB\n"
    )
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    return root


@pytest.mark.parametrize(
    ("seen", "gpus"),
    [({}, ("xe",)), ({"driver": "vfio-pci"}, ("vfio-pci",)), ({"driver": ""}, ("",)), ({"vendor": "0x1002"}, ())],
)
def test_look_reads_bus_driver_files_and_memory(tmp_path, seen, gpus) -> None:
    found = look(tmp_path / "cache", machine(tmp_path / "root", **seen))
    assert found.gpus == gpus
    assert found.npus == ()
    assert [file.usable for file in found.render_files] == [True]
    assert found.memory_total == 32_000_000 * 1024
    assert found.memory_free == 1_024_000
    assert found.cache_writable
    assert "CPU" in found.device_names


def test_in_an_image_the_release_is_the_one_that_it_holds(tmp_path, monkeypatch) -> None:
    """Images hold the code beside its libraries: pip knows of no package called shoal there."""

    def not_installed(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("shoal_stage.doctor.look.requires", not_installed)
    found = look(tmp_path / "cache", machine(tmp_path / "root"))
    assert found.openvino_wanted == ""
    assert not [each for each in examine(found) if "was tried with" in each.text]


async def test_a_link_is_measured_over_a_socket() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        link = await measure(f"127.0.0.1:{port}")
    assert link.error == ""
    assert 0 < link.round_trip_ms < 1000
    assert link.megabytes_per_second > 1


async def test_a_link_that_cannot_be_measured_says_why() -> None:
    async def hang_up(reader, writer):
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert (await measure(f"127.0.0.1:{port}")).error
    assert (await measure(f"127.0.0.1:{port}")).error
    assert (await measure("nonsense")).error == "it is not HOST:PORT"


def test_annotations_go_there_and_back_and_nonsense_is_not_there() -> None:
    found = NodeFindings(frozenset({Device.NPU}), 0.41, 112.0, {Device.GPU: 87.5})
    assert from_annotations(to_annotations(found)) == found
    assert to_annotations(NodeFindings()) == {}
    nonsense = {"shoal.dev/refused-devices": "TPU, ,", "shoal.dev/link-ms": "fast", "shoal.dev/gbps-gpu": "inf"}
    assert from_annotations(nonsense) == NodeFindings()


def test_a_doctor_s_findings_reach_the_planner_s_view_of_the_node() -> None:
    findings = examine(with_test("NPU", cosine=0.4))
    node = {
        "metadata": {"name": "pc-01", "annotations": node_annotations(HEALTHY, findings)},
        "status": {
            "allocatable": {"memory": "32Gi", "gpu.intel.com/xe": "1", "npu.intel.com/accel": "1"},
            "capacity": {"memory": "32Gi"},
        },
    }
    (view,) = view_nodes([node], [], [])
    assert view.facts.devices == (Device.GPU, Device.CPU)
    assert (view.facts.link_ms, view.facts.link_mbps) == (0.4, 112.0)
    assert view.facts.speeds[Device.GPU] == pytest.approx(95 / 110)


def test_the_report_is_json_with_findings_facts_and_annotations() -> None:
    report = json.loads(as_json(HEALTHY, examine(HEALTHY)))
    assert report["annotations"]["shoal.dev/link-mbps"] == "112"
    assert report["surroundings"]["gpus"] == ["xe"]
    assert report["findings"][0]["level"] == "ok"
