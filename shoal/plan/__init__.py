"""The planner: from block sizes, node facts and a spec to a plan. Pure: no client, no clock, no files.

facts.py      what the planner is told            devices.py    what is assumed of a device
costs.py      memory and time of a stage          search.py     the best cut
manual.py     cuts that the user made             planner.py    make_plan: the plan, its reasons, or why not
standby.py    stages that wait to replace one      sticky.py     keep_plan: as little changed as can be
document.py   plan.json                           estimate.py   sizes before anything is compiled
"""

from shoal.plan.document import Device, MemorySum, PipelinePlan, Plan, StagePlan, Standby
from shoal.plan.facts import ManualRange, ModelFacts, NodeFacts, PlanSpec, split_machine
from shoal.plan.planner import make_plan

__all__ = [
    "Device",
    "ManualRange",
    "MemorySum",
    "ModelFacts",
    "NodeFacts",
    "PipelinePlan",
    "Plan",
    "PlanSpec",
    "StagePlan",
    "Standby",
    "make_plan",
    "split_machine",
]
