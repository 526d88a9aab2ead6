"""What is read of a PC's files, and what logind answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import ResourceError
from shoal_stage.agent.logind import somebody_is_there
from shoal_stage.agent.readings import Places, boot_id, read


def test_counters_are_in_seconds(pc):
    pc.compute(others=20.0, pods=5.0)
    pc.throttle(2500)
    found = read(pc.places, 7.0, None)
    assert (found.at, found.cpus, found.person, found.on_battery) == (7.0, 8, None, False)
    assert found.busy == pytest.approx(125.0)
    assert found.pods == pytest.approx(45.0)
    assert found.throttled == 2.5
    assert boot_id(pc.places) == "boot-1"


def test_pods_are_found_without_systemds_cgroups_too(pc):
    cgroup = pc.places.sys / "fs/cgroup"
    (cgroup / "kubepods.slice").rename(cgroup / "kubepods")
    assert read(pc.places, 0.0, None).pods == pytest.approx(40.0)
    (cgroup / "kubepods").rename(cgroup / "elsewhere")
    assert read(pc.places, 0.0, None).pods is None


@pytest.mark.parametrize(
    ("supplies", "on_battery"),
    [
        ({}, False),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Charging"}}, False),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "ucsi": {"type": "USB", "online": "1"}}, False),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, False),
    ],
    ids=["desktop", "charging", "unplugged", "no mains shown", "on USB-C", "a mouse"],
)
def test_battery(pc, supplies, on_battery):
    for name, files in supplies.items():
        pc.supply(name, **files)
    assert read(pc.places, 0.0, None).on_battery is on_battery


def test_this_machine_can_be_read():
    found = read(Places(), 0.0, None)
    assert found.cpus > 0
    assert found.busy > 0
    assert boot_id(Places())


@pytest.mark.parametrize("idle", [True, False])
async def test_logind_says_whether_somebody_is_there(pc, logind, idle):
    logind.idle = idle
    assert await somebody_is_there(pc.places.run) is not idle
    assert logind.asked == [("org.freedesktop.login1.Manager", "IdleHint")]


async def test_without_a_bus_it_is_not_known(tmp_path: Path):
    with pytest.raises(ResourceError, match=r"logind cannot be asked by .*system_bus_socket"):
        await somebody_is_there(tmp_path)


async def test_a_bus_without_logind_is_said(pc, logind):
    logind.idle = None
    with pytest.raises(ResourceError, match="logind cannot be asked"):
        await somebody_is_there(pc.places.run)


async def test_a_logind_that_hangs_holds_nobody_up(pc, logind):
    logind.mute = True
    with pytest.raises(ResourceError, match=r"no answer within 0\.05 s"):
        await somebody_is_there(pc.places.run, seconds=0.05)
