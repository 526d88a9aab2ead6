"""What this version cannot do is refused by the field's name; no pod is made that would crash for it."""

from __future__ import annotations

import pytest

from shoal_operator.cluster.kinds import DEPLOYMENT, JOB

SOURCE = {"uri": "hf://org/model"}
REFUSED = {
    "spec.scheduler.speculative.draft": {"scheduler": {"speculative": {"draft": {"source": SOURCE}}}},
    "spec.devices": {"devices": ["GPU", "NPU"]},
    "spec.stages.manual": {
        "stages": {"mode": "Manual", "manual": [{"layers": {"first": 0, "last": 31}, "device": "NPU"}]}
    },
    "spec.model.source.uri": {"model": {"source": {"uri": "file:///home/me/model.gguf"}}},
}


@pytest.mark.parametrize("field", REFUSED)
async def test_a_new_model_that_asks_for_it_gets_no_pods(office, field):
    office.apply(**REFUSED[field])
    await office.settle()
    for kind in ("Planned", "Ready"):
        condition = office.condition(kind)
        assert (condition["status"], condition["reason"]) == ("False", "Unsupported")
        assert condition["message"].startswith(f"{field}: ")
    assert office.names(DEPLOYMENT) == office.names(JOB) == []


async def test_what_runs_stays_until_the_spec_is_mended(office):
    await office.settle()
    before = office.stages()
    office.apply(stages={"count": 2}, devices=["NPU"])
    await office.settle()
    assert office.condition("Planned")["reason"] == "Unsupported"
    assert office.stages() == before
    office.apply(stages={"count": 2})
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
    assert office.stages() == before


async def test_every_problem_is_named_at_once(office):
    office.apply(devices=["NPU"], model={"source": {"uri": "file:///home/me/model.gguf"}})
    await office.settle()
    message = office.condition("Planned")["message"]
    assert "spec.devices: " in message
    assert "spec.model.source.uri: " in message


async def test_a_draft_that_is_switched_off_is_no_problem(office):
    office.apply(stages={"count": 2}, scheduler={"speculative": {"mode": "Off", "draft": {"source": SOURCE}}})
    await office.settle()
    assert office.condition("Ready")["status"] == "True"
