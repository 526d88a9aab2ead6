"""The agent on a fake PC: what it writes to its Node object and when, and when the doctor comes."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from shoal import __version__
from shoal.errors import ResourceError
from shoal.node_use import CONDITION, HEARTBEAT_SECONDS, STALE_SECONDS, UseReason, use_of
from shoal_stage.agent import checkup
from shoal_stage.agent.checkup import CHECKED, annotations_of, neighbours
from shoal_stage.agent.node_object import FakeNode
from shoal_stage.agent.observation import Observation
from shoal_stage.agent.use import FREE_SECONDS, PATIENCE, Use
from shoal_stage.agent.watch import Agent

START = datetime.datetime(2026, 11, 30, 9, 0, tzinfo=datetime.UTC)
DONE = {CHECKED: f"{__version__} boot-1"}


class Watched:
    """An agent whose time is moved by hand."""

    def __init__(self, pc: Any, node: FakeNode) -> None:
        self.pc, self.node = pc, node
        self.now = 0.0
        self.new_agent()

    def new_agent(self) -> None:
        self.agent = Agent(self.node, self.pc.places, wall=lambda: START + datetime.timedelta(seconds=self.now))

    async def go(self, seconds: float, *, others: float = 0.0, pods: float = 0.0) -> None:
        """In looks of ten seconds, with these shares of all cores in use."""
        end = self.now + seconds
        while self.now < end:
            self.now += 10.0
            self.pc.compute(others=others * 10 * self.pc.cpus, pods=pods * 10 * self.pc.cpus)
            await self.agent.look(self.now)

    @property
    def condition(self) -> dict[str, Any]:
        (found,) = self.node.node["status"]["conditions"]
        return found


@pytest.fixture
def watched(pc, logind) -> Watched:
    """The doctor has been here already."""
    return Watched(pc, FakeNode(**DONE))


async def test_a_pc_in_use_and_free_again(watched, logind):
    await watched.go(60)
    assert (watched.condition["status"], watched.condition["reason"]) == ("False", "NotInUse")
    logind.idle = False
    await watched.go(PATIENCE[UseReason.USER_ACTIVE] + 10)
    began = watched.condition
    assert (began["type"], began["status"], began["reason"]) == (CONDITION, "True", "UserActive")
    logind.idle = True
    await watched.go(FREE_SECONDS - 10)
    assert watched.condition["status"] == "True"
    assert watched.condition["lastTransitionTime"] == began["lastTransitionTime"]
    await watched.go(20)
    assert (watched.condition["status"], watched.condition["reason"]) == ("False", "NotInUse")
    assert watched.condition["lastTransitionTime"] > began["lastTransitionTime"]


async def test_only_others_make_it_busy(watched):
    await watched.go(300, pods=0.9)
    assert watched.condition["reason"] == "NotInUse"
    await watched.go(140, others=0.5, pods=0.4)
    assert watched.condition["reason"] == "BusyWithOthers"


async def test_it_writes_what_changes_and_a_slow_heartbeat(watched):
    await watched.go(1800)
    assert len(watched.node.patches) == pytest.approx(1800 / HEARTBEAT_SECONDS, abs=1)
    heard = [patch["status"]["conditions"][0]["lastHeartbeatTime"] for patch in watched.node.patches]
    assert heard == sorted(set(heard))
    assert not any("metadata" in patch for patch in watched.node.patches)


async def test_an_api_server_that_is_away_is_written_to_later(watched, logind):
    await watched.go(20)
    logind.idle = False
    watched.node.failing = True
    with pytest.raises(ResourceError):
        await watched.go(100)
    watched.node.failing = False
    await watched.go(10)
    assert watched.condition["reason"] == "UserActive"


async def test_an_agent_that_is_started_anew_frees_no_pc(watched, logind):
    logind.idle = False
    await watched.go(60)
    logind.idle = True
    watched.new_agent()
    await watched.go(FREE_SECONDS - 10)
    assert watched.condition["status"] == "True"
    await watched.go(30)
    assert watched.condition["status"] == "False"


async def test_what_an_agent_said_long_ago_counts_no_more(watched, logind):
    logind.idle = False
    await watched.go(60)
    logind.idle = True
    watched.now += STALE_SECONDS
    watched.new_agent()
    await watched.go(20)
    assert watched.condition["status"] == "False"


async def test_without_logind_a_pc_is_judged_by_the_rest(pc):
    watched = Watched(pc, FakeNode(**DONE))
    pc.supply("BAT0", type="Battery", status="Discharging")
    await watched.go(100)
    assert watched.condition["reason"] == "OnBattery"


def test_a_condition_is_fresh_for_three_heartbeats():
    heard = {"type": CONDITION, "status": "True", "reason": "Hot", "lastHeartbeatTime": "2026-11-30T09:00:00Z"}
    found = use_of([{"type": "Ready", "status": "True"}, heard])
    assert found is not None
    assert found.fresh(START + datetime.timedelta(seconds=STALE_SECONDS - 1))
    assert not found.fresh(START + datetime.timedelta(seconds=STALE_SECONDS))
    assert use_of([{"type": "Ready", "status": "True"}]) is None


# ---- the doctor

REPORT = {
    "annotations": {"shoal.dev/gbps-cpu": "61.0", "shoal.dev/refused-devices": "GPU", "shoal.dev/link-ms": "0.41"},
    "surroundings": {"tests": [{"device": "CPU"}]},
    "findings": [],
}


@pytest.fixture
def doctor(monkeypatch) -> list[list[str]]:
    """Plays the doctor's process; what it was asked to measure."""
    calls: list[list[str]] = []

    async def examine(_: Any, peers: list[str]) -> dict[str, Any]:
        calls.append(peers)
        return json.loads(json.dumps(REPORT))

    monkeypatch.setattr(checkup, "examine", examine)
    return calls


async def test_the_doctor_comes_once_for_each_start_and_version(pc, logind, doctor):
    watched = Watched(pc, FakeNode())
    await watched.go(600)
    watched.new_agent()
    await watched.go(600)
    assert len(doctor) == 1
    annotations = watched.node.node["metadata"]["annotations"]
    assert annotations == DONE | {"shoal.dev/gbps-cpu": "61.0", "shoal.dev/link-ms": "0.41"}
    pc.start_again()
    await watched.go(60)
    assert len(doctor) == 2
    watched.node.node["metadata"]["annotations"][CHECKED] = "0.0.1 boot-2"
    watched.new_agent()
    await watched.go(60)
    assert len(doctor) == 3


async def test_the_doctor_disturbs_neither_a_person_nor_a_stage(pc, logind, doctor):
    watched = Watched(pc, FakeNode())
    logind.idle = False
    await watched.go(120)
    logind.idle = True
    await watched.go(300, pods=0.5)
    assert not doctor
    await watched.go(600)
    assert len(doctor) == 1


async def test_a_doctor_that_fails_comes_again_later(pc, logind, monkeypatch):
    calls = []

    async def examine(*_: Any) -> dict[str, Any]:
        calls.append(watched.now)
        raise ResourceError("the doctor made no report")

    monkeypatch.setattr(checkup, "examine", examine)
    watched = Watched(pc, FakeNode())
    for _ in range(100):
        try:
            await watched.go(10)
        except ResourceError:
            continue
    assert len(calls) == 2
    assert calls[1] - calls[0] >= 600


def test_of_a_device_that_the_doctor_did_not_see_it_says_nothing():
    before = {"shoal.dev/refused-devices": "CPU,NPU", "shoal.dev/gbps-gpu": "90.0", "shoal.dev/gbps-cpu": "61.0"}
    changes = annotations_of(REPORT, before, "1 boot")
    assert changes == {CHECKED: "1 boot", "shoal.dev/refused-devices": "NPU", "shoal.dev/link-ms": "0.41"}


def test_a_device_that_is_well_again_is_refused_no_more():
    report = REPORT | {"surroundings": {"tests": [{"device": "GPU.0"}]}, "annotations": {"shoal.dev/gbps-gpu": "95.0"}}
    changes = annotations_of(report, {"shoal.dev/refused-devices": "GPU"}, "1 boot")
    assert changes == {CHECKED: "1 boot", "shoal.dev/refused-devices": None, "shoal.dev/gbps-gpu": "95.0"}


def test_each_pc_measures_as_many_others_and_is_measured_as_often():
    everyone = [f"10.0.0.{number}" for number in range(10, 22)]
    chosen = {mine: neighbours(everyone, mine) for mine in everyone}
    assert all(mine not in others and len(set(others)) == 4 for mine, others in chosen.items())
    assert {sum(each in others for others in chosen.values()) for each in everyone} == {4}
    assert neighbours(["10.0.0.1"], "10.0.0.1") == []


def test_the_doctor_waits_while_something_presses():
    assert checkup.may_run(Use(), Observation(0, load=0.1))
    assert not checkup.may_run(Use(pressing={UseReason.HOT: 0.0}), Observation(0, load=0.1))
    assert not checkup.may_run(Use(), Observation(0, load=0.3))
