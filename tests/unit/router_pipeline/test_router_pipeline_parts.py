"""The pipeline's pure parts: fit, epochs, patience, plan file, timings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import PlanError
from shoal.patience import StepPatience
from shoal.plan.document import Plan
from shoal.wire.errors import DigestMismatch, StageNotReady, WrongPlace
from shoal.wire.messages import KvCapacity, StageDescription, StageState, StageTiming
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.fit import check_fit, next_epoch
from shoal_router.pipeline.plan_source import PlanFile
from shoal_router.pipeline.timings import TimingSums

DIGEST = "a" * 64
PLANNED = planned_at(["a:1", "b:2"], [(0, 3), (3, 6)], DIGEST)


def described(start, end, **changes):
    description = StageDescription(
        model_digest=DIGEST,
        block_start=start,
        block_end=end,
        blocks_in_model=6,
        state=StageState.READY,
        epoch=4,
        engine="paged",
        device="CPU",
        execution_devices=("CPU",),
        exact=True,
        hidden_size=8,
        vocab_size=32,
        max_frame_bytes=1024,
        capacity=KvCapacity(8, 100, 32, 2048, 1000, shares_blocks=True),
        versions={"openvino": "2026.4.1"},
    )
    return replace(description, **changes)


def test_the_pipeline_holds_what_its_smallest_stage_holds():
    second = described(3, 6, capacity=KvCapacity(4, 120, 32, 1024, 500, shares_blocks=True))
    expected = KvCapacity(4, 100, 32, 1024, 1500, shares_blocks=True)
    assert check_fit(PLANNED, [described(0, 3), second]) == expected


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model_digest": "b" * 64}, DigestMismatch, "stage 1 at b:2 holds model bbbbbbbbbbbb"),
        ({"block_start": 2}, WrongPlace, "holds blocks 2:6, the plan gives it 3:6"),
        ({"blocks_in_model": 7}, WrongPlace, "the plan ends at block 6, the model has 7"),
        ({"exact": False}, WrongPlace, "exact=False, stage 0 has exact=True"),
        ({"versions": {"openvino": "2026.3"}}, WrongPlace, "runs openvino 2026.3, stage 0 runs 2026.4.1"),
        ({"versions": {}}, WrongPlace, "runs openvino missing"),
        ({"capacity": None}, StageNotReady, "does not say what it can hold"),
        ({"capacity": KvCapacity(8, 100, 16, 2048, 0, True)}, WrongPlace, "pages of 16 tokens, stage 0 in pages of 32"),
        ({"capacity": KvCapacity(8, 100, 32, 2048, 0, False)}, WrongPlace, "slots of 32 tokens, stage 0 in pages"),
    ],
)
def test_case_p3_stages_that_do_not_fit_are_refused_by_name(changes, error, match):
    with pytest.raises(error, match=match):
        check_fit(PLANNED, [described(0, 3), described(3, 6, **changes)])


def test_an_epoch_is_newer_than_any_a_stage_knows_and_than_those_that_restarted_stages_forgot():
    assert next_epoch([described(0, 3, epoch=7), described(3, 6, epoch=9)], 5.9) == 10
    assert next_epoch([described(0, 3, epoch=0)], 1_700_000_000.7) == 1_700_000_000


def test_patience_grows_with_the_measured_steps_and_the_tokens():
    patience = StepPatience(60.0, 10.0)
    assert patience.allowed(256) == 60.0, "nothing was measured yet"
    patience.learn(0.5, 1)
    assert patience.allowed(1) == pytest.approx(12.0)
    assert patience.allowed(100) == pytest.approx(210.0)
    for _ in range(2000):
        patience.learn(0.001, 1)
    assert patience.allowed(1) < 10.1, "one slow step is not remembered for ever"
    assert StepPatience(5.0, 10.0).allowed(1) == 5.0
    patience = StepPatience(5.0, 10.0)
    patience.learn(0.0001, 1)
    assert patience.allowed(1) < 5.1, "who allows little at first does not get more later"


def test_timings_are_summed_stage_by_stage():
    sums = TimingSums()
    sums.add([StageTiming(0, 10, 1, 2, 3), StageTiming(1, 20, 4, 5, 6)])
    sums.add([StageTiming(0, 100), StageTiming(1, 200)])
    assert sums.steps == 2
    assert sums.sums() == (StageTiming(0, 110, 1, 2, 3), StageTiming(1, 220, 4, 5, 6))


class TestPlanFile:
    """Reading plan.json: each way in which it cannot be used is one clear line."""

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "plan.json"
        path.write_text(Plan(model_digest=DIGEST, pipelines=(PLANNED.stages,)).model_dump_json(by_alias=True))
        return path

    def test_a_plan_is_read_anew_each_time(self, path):
        source = PlanFile(path)
        assert source.read() == PLANNED
        path.write_text(path.read_text().replace("b:2", "c:3"))
        assert source.read().addresses == ("a:1", "c:3")

    def test_a_missing_file(self, path):
        with pytest.raises(PlanError, match="there is no plan at"):
            PlanFile(path.with_name("other.json")).read()

    def test_a_file_that_cannot_be_read(self, tmp_path):
        with pytest.raises(PlanError, match="cannot be read: Is a directory"):
            PlanFile(tmp_path).read()

    @pytest.mark.parametrize(("old", "new"), [("pipelines", "pipes"), ('"blockStart":3', '"blockStart":2'), ("{", "[")])
    def test_a_document_that_is_no_plan(self, path, old, new):
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(PlanError, match="cannot be used"):
            PlanFile(path).read()

    def test_a_pipeline_that_is_not_there(self, path):
        with pytest.raises(PlanError, match="has 1 pipelines, there is no 1"):
            PlanFile(path, pipeline=1).read()

    def test_a_stage_without_address(self, path):
        path.write_text(path.read_text().replace("b:2", ""))
        with pytest.raises(PlanError, match="no address for stage 1 yet"):
            PlanFile(path).read()
