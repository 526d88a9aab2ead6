"""keep_plan: nothing moves unless it must, and what moves fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import PlanError
from shoal.plan import Device, ManualRange, NodeFacts, Plan, PlanSpec, make_plan
from shoal.plan.costs import Costs
from shoal.plan.devices import MIB
from shoal.plan.facts_json import facts_from_json, facts_to_json
from shoal.plan.sticky import keep_plan
from shoaltest.plan_facts import model, node

SPEC = PlanSpec(devices=(Device.GPU,), streams=1, max_context=1024)
TWO = replace(SPEC, stage_count=2)
NODES = [node(f"pc-{number}") for number in range(1, 5)]

Place = tuple[int, int, str, int, int]


def places(plan: Plan) -> list[Place]:
    """(pipeline, stage, node, first block, end) of every stage."""
    return [
        (pipeline.index, stage.index, stage.node, stage.block_start, stage.block_end)
        for pipeline in plan.pipelines
        for stage in pipeline.stages
    ]


def test_without_a_plan_one_is_made():
    kept = keep_plan(None, model(), NODES, NODES, SPEC)
    assert kept.plan == make_plan(model(), NODES, SPEC)
    assert kept.moved == ()


def test_a_better_node_moves_nothing():
    plan = make_plan(model(), NODES[:2], TWO)
    kept = keep_plan(plan, model(), [*NODES, node("pc-0", 64)], NODES, TWO)
    assert kept.plan.pipelines == plan.pipelines
    assert kept.moved == ()
    assert "pc-0" in kept.plan.spares


def test_only_the_stage_of_the_lost_node_moves():
    spec = replace(SPEC, stage_count=3)
    plan = make_plan(model(), NODES, spec)
    lost, spare = plan.pipelines[0].stages[1].node, plan.spares[0]
    left = [each for each in NODES if each.name != lost]
    kept = keep_plan(plan, model(), left, left, spec)
    wanted = [(*each[:2], spare, *each[3:]) if each[2] == lost else each for each in places(plan)]
    assert places(kept.plan) == wanted
    assert kept.moved == (f"stage 1 moved from {lost} to {spare}",)


def test_a_stage_stays_on_a_node_that_gets_no_new_ones():
    plan = make_plan(model(), NODES, TWO)
    held = plan.pipelines[0].stages[0].node
    kept = keep_plan(plan, model(), [each for each in NODES if each.name != held], NODES, TWO)
    assert kept.plan.pipelines == plan.pipelines


def test_memory_that_others_took_moves_a_stage_only_when_it_no_longer_fits():
    plan = make_plan(model(), NODES, TWO)
    stage = plan.pipelines[0].stages[0]

    def with_free(free: int) -> list[NodeFacts]:
        return [replace(each, memory_free=free) if each.name == stage.node else each for each in NODES]

    tight = with_free(stage.memory.total)
    assert keep_plan(plan, model(), tight, tight, TWO).plan.pipelines == plan.pipelines
    over = with_free(stage.memory.total - 1)
    assert keep_plan(plan, model(), over, over, TWO).plan.pipelines[0].stages[0].node != stage.node


def test_without_a_spare_the_rest_stays_and_the_sum_is_said():
    nodes = [node("a", 10), node("b", 10)]
    plan = make_plan(model(), nodes, TWO)
    kept = keep_plan(plan, model(), nodes[:1], nodes[:1], TWO)
    assert kept.plan.pipelines == plan.pipelines
    assert "needs a node with GPU" in kept.missing[0]
    assert "GiB" in kept.missing[0]


def test_another_cut_serves_where_no_node_can_take_the_lost_stage():
    nodes = [node("a", 12), node("b", 12), node("c", 8), node("d", 8)]
    plan = make_plan(model(), nodes[:2], SPEC)
    kept = keep_plan(plan, model(), nodes[1:], nodes[1:], SPEC)
    assert {each[2] for each in places(kept.plan)} <= {"b", "c", "d"}
    assert "cut anew" in kept.moved[-1]
    assert kept.missing == ()


def test_another_cut_in_the_spec_is_made():
    plan = make_plan(model(), NODES, TWO)
    three = keep_plan(plan, model(), NODES, NODES, replace(SPEC, stage_count=3)).plan
    assert len(three.pipelines[0].stages) == 3
    manual = replace(SPEC, manual=(ManualRange(0, 3), ManualRange(4, 11)))
    kept = keep_plan(plan, model(), NODES, NODES, manual)
    assert [each[3:] for each in places(kept.plan)] == [(0, 5), (5, 14)]
    assert keep_plan(kept.plan, model(), NODES, NODES, manual).plan.pipelines == kept.plan.pipelines


def test_a_stage_that_the_user_put_on_a_node_waits_for_it():
    manual = replace(SPEC, manual=(ManualRange(0, 5, node="pc-1"), ManualRange(6, 11)))
    plan = make_plan(model(), NODES, manual)
    kept = keep_plan(plan, model(), NODES[1:], NODES[1:], manual)
    assert kept.plan.pipelines == plan.pipelines
    assert kept.missing


def test_replicas_come_and_go_at_the_end():
    plan = make_plan(model(), NODES, TWO)
    two = keep_plan(plan, model(), NODES, NODES, replace(TWO, replicas=2)).plan
    assert two.pipelines[0] == plan.pipelines[0]
    assert [pipeline.index for pipeline in two.pipelines] == [0, 1]
    assert len({each[2] for each in places(two)}) == 4
    three = keep_plan(two, model(), NODES, NODES, replace(TWO, replicas=3))
    assert three.plan.pipelines == two.pipelines
    assert "1 pipeline more" in three.missing[0]
    assert keep_plan(two, model(), NODES, NODES, TWO).plan.pipelines == plan.pipelines


def test_another_model_of_the_same_shape_keeps_its_places():
    plan = make_plan(model(), NODES, TWO)
    other = replace(model(layer=420 * MIB), digest="e" * 64)
    kept = keep_plan(plan, other, NODES, NODES, TWO)
    assert places(kept.plan) == places(plan)
    assert kept.plan.model_digest == "e" * 64
    assert kept.plan.pipelines[0].stages[0].memory.weights > plan.pipelines[0].stages[0].memory.weights
    assert len(places(keep_plan(plan, model(layers=13), NODES, NODES, TWO).plan)) == 2


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 24), min_size=2, max_size=7),
    lost=st.sets(st.integers(0, 6)),
    count=st.sampled_from([None, 1, 2, 3]),
    replicas=st.integers(1, 2),
    layers=st.integers(3, 14),
)
def test_whatever_is_lost(sizes, lost, count, replicas, layers):
    nodes = [node(f"n{number}", gib) for number, gib in enumerate(sizes)]
    spec = replace(SPEC, stage_count=count, replicas=replicas)
    facts = model(layers)
    try:
        plan = make_plan(facts, nodes, spec)
    except PlanError:
        return
    left = [each for number, each in enumerate(nodes) if number not in lost]
    gone = {f"n{number}" for number in lost}
    kept = keep_plan(plan, facts, left, left, spec)
    held = [each[2] for each in places(kept.plan)]
    assert len(set(held)) == len(held), "a node holds two stages"
    costs = Costs(facts, spec)
    free = {each.name: each.usable for each in left}
    for pipeline in kept.plan.pipelines:
        for stage in pipeline.stages:
            start, end = max(stage.block_start - 1, 0), min(stage.block_end - 1, layers)
            assert stage.memory == costs.memory(stage.device, start, end)
            assert stage.node in gone or stage.memory.total <= free[stage.node]
    if not any("anew" in word for word in kept.moved):
        stayed = {each for each in places(plan) if each[2] not in gone}
        assert stayed <= set(places(kept.plan)), "a stage moved that need not"
    if not kept.missing:
        assert not gone & set(held)
    again = keep_plan(kept.plan, facts, left, left, spec)
    assert places(again.plan) == places(kept.plan), "it does not come to rest"
    assert again.plan == keep_plan(again.plan, facts, left, left, spec).plan


@pytest.mark.parametrize("layers", [1, 12, 126])
def test_facts_survive_a_termination_message(layers):
    facts = replace(model(layers), layer_weights=(800_000_000,) * layers, head_weights=131_072_000)
    text = facts_to_json(facts)
    assert facts_from_json(text) == facts
    assert len(text) < 4096
    with pytest.raises(ValueError, match="validation error"):
        facts_from_json(text[:-2])
