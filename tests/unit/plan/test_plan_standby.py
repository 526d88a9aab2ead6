"""Standbys: which stages get one, on which nodes, and that they fit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import PlanError
from shoal.plan import Device, ManualRange, PlanSpec, make_plan
from shoal.plan.costs import Costs, memory_limit, usable_sites
from shoal.plan.standby import covered, layers_of, missing_standbys, with_standbys
from shoal.plan.sticky import keep_plan
from shoaltest.plan_facts import model, node

SPEC = PlanSpec(devices=(Device.GPU,), streams=1, max_context=1024, stage_count=2, spare_nodes=1)
NODES = [node(f"pc-{number}") for number in range(1, 5)]


def test_a_stage_that_the_user_put_on_a_node_has_none():
    ranges = (ManualRange(0, 5, "pc-1"), ManualRange(6, 11, "pc-2"))
    spec = replace(SPEC, stage_count=None, manual=ranges)
    plan = with_standbys(make_plan(model(), NODES, spec), model(), NODES, spec)
    assert plan.standbys == ()
    assert "0 found a node" in missing_standbys(plan, spec)


def test_one_that_stands_by_already_stays_although_a_quicker_node_came():
    plan = with_standbys(make_plan(model(), NODES, SPEC), model(), NODES, SPEC)
    (first,) = plan.standbys
    quick = replace(node("a-new-one"), speeds={Device.GPU: 9.0})
    again = with_standbys(plan, model(), [*NODES, quick], SPEC, previous=plan.standbys)
    assert again.standbys == plan.standbys
    fresh = with_standbys(plan, model(), [*NODES, quick], SPEC)
    assert fresh.standbys[0].stage.node == "a-new-one" != first.stage.node


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 24), min_size=2, max_size=8),
    lost=st.sets(st.integers(0, 7)),
    wanted=st.integers(0, 4),
    replicas=st.integers(1, 2),
)
def test_whatever_is_lost(sizes, lost, wanted, replicas):
    nodes = [node(f"n{number}", gib) for number, gib in enumerate(sizes)]
    spec = replace(SPEC, replicas=replicas, spare_nodes=wanted)
    facts = model()
    try:
        plan = with_standbys(make_plan(facts, nodes, spec), facts, nodes, spec)
    except PlanError:
        return
    _check(plan, nodes, facts, spec)
    left = [each for number, each in enumerate(nodes) if number not in lost]
    kept = keep_plan(plan, facts, left, left, spec)
    after = with_standbys(kept.plan, facts, left, spec, previous=plan.standbys, staying=left)
    if not kept.missing:
        _check(after, left, facts, spec)
    again = with_standbys(
        keep_plan(after, facts, left, left, spec).plan, facts, left, spec, previous=after.standbys, staying=left
    )
    assert again.standbys == after.standbys, "it does not come to rest"


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 24), min_size=2, max_size=8),
    used=st.sets(st.integers(0, 7)),
    wanted=st.integers(0, 3),
    replicas=st.integers(1, 2),
)
def test_whoever_is_to_leave_gets_a_standby_first(sizes, used, wanted, replicas):
    nodes = [node(f"n{number}", gib) for number, gib in enumerate(sizes)]
    spec = replace(SPEC, replicas=replicas, spare_nodes=wanted)
    facts = model()
    try:
        plan = with_standbys(make_plan(facts, nodes, spec), facts, nodes, spec)
    except PlanError:
        return
    leaving = {each.name for number, each in enumerate(nodes) if number in used}
    left = [each for each in nodes if each.name not in leaving]

    def again(before):
        return with_standbys(before, facts, left, spec, previous=before.standbys, staying=left, leaving=leaving)

    after = again(plan)
    moving = covered(after, leaving)
    _check(after, nodes, facts, replace(spec, spare_nodes=wanted + len(moving)))
    assert not leaving & {standby.stage.node for standby in after.standbys}
    assert again(after).standbys == after.standbys, "it does not come to rest"
    costs = Costs(facts, spec)
    free = {each.name for each in left} - {stage.node for stage in after.everywhere}
    others = {s.stage.node for s in after.standbys} - {s.stage.node for s in moving.values()}
    sites = {site.name: site for site in usable_sites(left, spec)[0] if site.name in free | others}
    for pipeline in after.pipelines:
        for stage in pipeline.stages:
            if stage.node in leaving and (pipeline.index, stage.index) not in moving:
                assert not any(costs.fits(site, *layers_of(stage, facts)) for site in sites.values())


def _check(plan, nodes, facts, spec):
    held = [stage.node for stage in plan.everywhere]
    assert len(set(held)) == len(held), "a node holds two"
    assert not set(plan.spares) & set(held)
    assert len(plan.standbys) <= spec.spare_nodes
    costs = Costs(facts, spec)
    limits = {each.name: memory_limit(each, spec) for each in nodes}
    stages = {(pipeline.index, stage.index): stage for pipeline in plan.pipelines for stage in pipeline.stages}
    for standby in plan.standbys:
        stage, twin = standby.stage, stages[standby.pipeline, standby.stage.index]
        assert (stage.block_start, stage.block_end) == (twin.block_start, twin.block_end)
        assert stage.memory == costs.memory(stage.device, *layers_of(stage, facts))
        assert stage.memory.total <= limits[stage.node]
