"""placement.whenInUse: Yield: stages leave a PC that somebody uses, without a pause, if another can hold them."""

from __future__ import annotations

import datetime
import json

import pytest

from shoal.node_use import CONDITION, STALE_SECONDS, NodeUse
from shoal.plan.facts import NodeFacts
from shoal.resource import Day, Placement, WhenInUse, WorkingHours
from shoal_operator.causes import Concern, concerned
from shoal_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NODE, Ref
from shoal_operator.nodes import NodeView
from shoal_operator.reconcile.manners import look_again_for_use, until_change, within

SELECTOR = {"nodeSelector": {"shoal.dev/platform": "lunar-lake"}}
YIELD = SELECTOR | {"sparePods": 0, "whenInUse": "Yield"}


def say(office, name: str, status: str, reason: str = "UserActive") -> None:
    """What the node's agent says, now."""
    node = office.cluster.objects[Ref(NODE, "", name)]
    said = {
        "type": CONDITION,
        "status": status,
        "reason": reason if status == "True" else "NotInUse",
        "lastHeartbeatTime": office.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    others = [each for each in node["status"]["conditions"] if each["type"] != CONDITION]
    office.cluster.put({**node, "status": {**node["status"], "conditions": [*others, said]}})


def after(office, seconds: float) -> None:
    office.now += datetime.timedelta(seconds=seconds)


def plan_of(office) -> dict:
    return json.loads(office.cluster.objects[Ref(CONFIG_MAP, "ai", "llama-8b-plan")]["data"]["plan.json"])


def nodes_of(office) -> list[str]:
    return [stage["node"] for stage in plan_of(office)["pipelines"][0]["stages"]]


@pytest.fixture
async def settled(make_office, make_node):
    """Five equal PCs, two of which hold a stage."""
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 6)))
    office.apply(stages={"count": 2}, placement=YIELD)
    await office.settle()
    return office


@pytest.fixture
async def tight(make_office, make_node):
    """Two PCs that hold the model only together."""
    office = make_office(make_node("pc-01", "10Gi"), make_node("pc-02", "10Gi"))
    office.apply(scheduler={"streams": 2, "maxContext": 2048}, placement=YIELD)
    await office.settle()
    return office


async def test_a_stage_is_loaded_elsewhere_before_it_leaves(settled):
    first, second = nodes_of(settled)
    before = settled.names(DEPLOYMENT)
    say(settled, second, "True")
    await settled.reconcile()
    # The stage serves where it is; its standby is being loaded.
    assert nodes_of(settled) == [first, second]
    (standby,) = plan_of(settled)["standbys"]
    assert standby["stage"]["index"] == 1
    assert set(before) < set(settled.names(DEPLOYMENT))
    progressing = settled.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("True", "Yielding")
    assert f"stage 1 leaves {second}" in progressing["message"]
    settled.workloads.step()
    await settled.settle()
    assert nodes_of(settled) == [first, standby["stage"]["node"]]
    assert plan_of(settled).get("standbys", []) == []
    assert settled.condition("Ready")["status"] == "True"
    assert settled.condition("Degraded")["status"] == "False"
    assert settled.condition("Progressing")["status"] == "False"
    assert second not in settled.model()["status"]["plan"]["spares"]


async def test_the_pod_that_takes_over_is_the_one_that_was_loaded(settled):
    say(settled, nodes_of(settled)[0], "True", "OnBattery")
    await settled.reconcile()
    (standby,) = plan_of(settled)["standbys"]
    name = standby["stage"]["address"].partition(".")[0]
    made = settled.cluster.objects[Ref(DEPLOYMENT, "ai", name)]
    settled.workloads.step()
    await settled.settle()
    now = settled.cluster.objects[Ref(DEPLOYMENT, "ai", name)]
    assert plan_of(settled)["pipelines"][0]["stages"][0]["address"] == standby["stage"]["address"]
    assert (now["metadata"]["uid"], now["spec"]) == (made["metadata"]["uid"], made["spec"])


async def test_a_pc_that_is_free_again_takes_nothing_back(settled):
    second = nodes_of(settled)[1]
    say(settled, second, "True")
    await settled.settle()
    moved = nodes_of(settled)
    say(settled, second, "False")
    await settled.settle()
    assert nodes_of(settled) == moved
    assert second in settled.model()["status"]["plan"]["spares"]


async def test_somebody_who_leaves_before_the_stage_is_loaded_stops_the_move(settled):
    before, deployments = nodes_of(settled), settled.names(DEPLOYMENT)
    say(settled, before[1], "True")
    await settled.reconcile()
    say(settled, before[1], "False")
    await settled.settle()
    assert nodes_of(settled) == before
    assert settled.names(DEPLOYMENT) == deployments


async def test_without_another_place_it_stays_and_says_so(tight):
    before = tight.stages()
    writes = len(tight.cluster.writes)
    say(tight, "pc-02", "True")
    outcome = await tight.settle()
    assert tight.stages() == before
    assert tight.condition("Ready")["status"] == "True"
    degraded = tight.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NodeInUse")
    assert "stays on pc-02, which is in use (UserActive)" in degraded["message"]
    assert outcome.wants_room
    assert len(tight.cluster.writes) > writes
    say(tight, "pc-02", "False")
    await tight.settle()
    assert tight.condition("Degraded")["status"] == "False"


async def test_both_pcs_in_use_and_one_place(make_office, make_node):
    office = make_office(*(make_node(f"pc-0{number}", "10Gi") for number in range(1, 4)))
    office.apply(scheduler={"streams": 2, "maxContext": 2048}, stages={"count": 2}, placement=YIELD)
    await office.settle()
    before = nodes_of(office)
    for name in before:
        say(office, name, "True")
    await office.settle()
    assert len(set(before) & set(nodes_of(office))) == 1
    assert office.condition("Ready")["status"] == "True"
    assert office.condition("Degraded")["reason"] == "NodeInUse"


async def test_a_pc_in_use_gets_no_stage(make_office, make_node):
    office = make_office(make_node("pc-01", "60Gi"), *(make_node(f"pc-0{number}", "10Gi") for number in (2, 3)))
    say(office, "pc-01", "True", "BusyWithOthers")
    office.apply(scheduler={"streams": 2, "maxContext": 2048}, placement=YIELD)
    await office.settle()
    assert set(nodes_of(office)) == {"pc-02", "pc-03"}
    assert "pc-01" not in office.model()["status"]["plan"]["spares"]


async def test_a_model_without_a_plan_waits_until_pcs_are_free(make_office, make_node):
    office = make_office(make_node("pc-01", "60Gi"))
    say(office, "pc-01", "True")
    office.apply(placement=YIELD)
    await office.settle()
    planned = office.condition("Planned")
    assert planned["status"] == "False"
    assert "pc-01 is in use (UserActive)" in planned["message"]
    say(office, "pc-01", "False")
    await office.settle()
    assert office.condition("Ready")["status"] == "True"


async def test_by_default_it_is_ignored(make_office, make_node):
    office = make_office(make_node("pc-01", "60Gi"), make_node("pc-02", "60Gi"))
    office.apply()
    await office.settle()
    before = office.stages()
    for name in ("pc-01", "pc-02"):
        say(office, name, "True")
    await office.settle()
    assert office.stages() == before


async def test_an_agent_that_fell_silent_says_nothing(settled):
    before = nodes_of(settled)
    say(settled, before[1], "True")
    after(settled, STALE_SECONDS)
    await settled.settle()
    assert nodes_of(settled) == before


def test_it_looks_again_when_the_agent_will_have_been_silent():
    now = at("2026-11-30T07:58:00+01:00")
    heard = NodeUse(in_use=True, reason="Hot", heard=now - datetime.timedelta(seconds=200))
    views = [NodeView(NodeFacts("pc-01", (), 0, 0, 0), use=heard), NodeView(NodeFacts("pc-02", (), 0, 0, 0))]
    yields = Placement(when_in_use=WhenInUse.YIELD)
    assert look_again_for_use(views, yields, now) == STALE_SECONDS - 200 + 0.5
    assert look_again_for_use(views, Placement(), now) is None
    # Working hours begin before that.
    hours = Placement(when_in_use=WhenInUse.YIELD, working_hours=BERLIN)
    assert look_again_for_use(views, hours, now) == 120.5
    assert look_again_for_use(views[1:], hours, now) is None


async def test_a_loss_comes_before_manners(settled):
    """The spare goes to the stage whose node is gone, not to the one whose node is in use."""
    first, second = nodes_of(settled)
    for name in {f"pc-0{number}" for number in range(1, 6)} - {first, second, "pc-05", "pc-04"}:
        settled.cluster.remove(Ref(NODE, "", name))
    say(settled, first, "True")
    await settled.reconcile()
    settled.cluster.remove(Ref(NODE, "", second))
    await settled.settle()
    assert second not in nodes_of(settled)
    assert settled.condition("Ready")["status"] == "True"


async def test_a_stage_that_was_put_on_a_pc_by_name_stays(make_office, make_node):
    office = make_office(*(make_node(f"pc-0{number}", "28Gi") for number in (1, 2, 3)))
    ranges = [{"layers": {"first": 0, "last": 31}, "node": "pc-02"}]
    office.apply(stages={"mode": "Manual", "manual": ranges}, placement=YIELD)
    await office.settle()
    say(office, "pc-02", "True")
    await office.settle()
    assert nodes_of(office) == ["pc-02"]
    assert office.condition("Degraded")["reason"] == "NodeInUse"


async def test_standbys_leave_too(make_office, make_node):
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 6)))
    office.apply(stages={"count": 2}, placement=YIELD | {"sparePods": 1})
    await office.settle()
    (standby,) = plan_of(office)["standbys"]
    say(office, standby["stage"]["node"], "True")
    await office.settle()
    (now,) = plan_of(office)["standbys"]
    assert now["stage"]["node"] != standby["stage"]["node"]


# ---- working hours

BERLIN = WorkingHours(time_zone="Europe/Berlin")


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


@pytest.mark.parametrize(
    ("time", "inside", "until"),
    [
        ("2026-11-30T07:59:59+01:00", False, 1),
        ("2026-11-30T08:00:00+01:00", True, 10 * 3600),
        ("2026-11-30T17:59:00+01:00", True, 60),
        ("2026-11-30T18:00:00+01:00", False, 14 * 3600),
        ("2026-12-04T18:00:00+01:00", False, 62 * 3600),
        ("2026-12-05T12:00:00+01:00", False, 44 * 3600),
    ],
    ids=["before", "at eight", "until six", "at six", "Friday evening", "Saturday"],
)
def test_hours_are_those_of_the_office(time, inside, until):
    assert within(BERLIN, at(time)) is inside
    assert until_change(BERLIN, at(time)) == until


def test_the_night_of_the_change_of_clocks_is_an_hour_longer():
    sundays = WorkingHours(days=(Day.SUN,), start="01:00", end="04:00", time_zone="Europe/Berlin")
    assert until_change(sundays, at("2026-10-25T01:00:00+02:00")) == 4 * 3600


async def test_in_working_hours_every_pc_with_an_agent_is_in_use(settled):
    """12:00 UTC on a Sunday; pc-04 and pc-05 are servers, without an agent."""
    hours = {"days": ["Mon"], "start": "08:00", "end": "18:00", "timeZone": "Europe/Berlin"}
    settled.apply(stages={"count": 2}, placement=YIELD | {"workingHours": hours})
    pcs = [name for name in ("pc-01", "pc-02", "pc-03", "pc-04", "pc-05") if name in nodes_of(settled)]
    pcs += [name for name in ("pc-01", "pc-02", "pc-03", "pc-04", "pc-05") if name not in pcs][:1]
    for name in pcs:
        say(settled, name, "False")
    outcome = await settled.settle()
    assert set(nodes_of(settled)) < set(pcs)
    settled.now = at("2026-11-30T08:00:01+01:00")
    for name in pcs:
        say(settled, name, "False")
    outcome = await settled.settle()
    assert not set(nodes_of(settled)) & set(pcs)
    assert outcome.look_again is not None
    assert outcome.look_again <= STALE_SECONDS + 1


def test_a_heartbeat_concerns_nobody_and_a_change_everybody(make_node):
    def node(status: str, heard: str, **annotations: str):
        made = make_node("pc-01")
        said = {"type": CONDITION, "status": status, "reason": "UserActive", "lastHeartbeatTime": heard}
        made["status"]["conditions"].append(said)
        made["metadata"]["annotations"] = annotations
        return made

    before = node("True", "2026-11-30T09:00:00Z")
    assert concerned(before, node("True", "2026-11-30T09:05:00Z")) == (None, Concern.NOBODY)
    assert concerned(before, node("False", "2026-11-30T09:00:00Z")) == (None, Concern.EVERYBODY)
    measured = node("True", "2026-11-30T09:00:00Z", **{"shoal.dev/link-ms": "4.0"})
    assert concerned(before, measured) == (None, Concern.EVERYBODY)
    other = node("True", "2026-11-30T09:00:00Z", **{"example.com/note": "x"})
    assert concerned(before, other) == (None, Concern.NOBODY)


async def test_a_time_zone_that_does_not_exist_is_refused_by_its_name(settled):
    settled.apply(placement=YIELD | {"workingHours": {"timeZone": "Mars/Olympus"}})
    await settled.settle()
    planned = settled.condition("Planned")
    assert (planned["status"], planned["reason"]) == ("False", "Unsupported")
    assert "placement.workingHours.timeZone: Mars/Olympus is no time zone" in planned["message"]
