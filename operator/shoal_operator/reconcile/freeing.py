"""Giving nodes back: a pipeline whose lost stage finds no place computes nothing, and holds PCs that others could use.

Only where the user asks for it (`recovery.freeAfterSeconds`): stages that stay loaded go on at once when the lost node
returns. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from shoal.plan.document import PipelinePlan, Plan
from shoal_operator.reconcile.observed import Observed


def give_back(
    plan: Plan, missing: Collection[str], observed: Observed, after: int | None
) -> tuple[Plan | None, tuple[str, ...]]:
    """The plan without the pipelines that have lacked a node for `after` seconds, and a line for each of them.

    None when none is left. A Node object that was deleted counts as gone for ever.
    """
    if after is None or not missing:
        return plan, ()
    gone = {view.name: view.lost_for(observed.now) for view in observed.nodes}
    kept: list[PipelinePlan] = []
    said = []
    for pipeline in plan.pipelines:
        lost = next((stage for stage in pipeline.stages if gone.get(stage.node, inf) >= after), None)
        if lost is None:
            kept.append(pipeline.model_copy(update={"index": len(kept)}))
        else:
            said.append(
                f"pipeline {pipeline.index} gave its nodes back: {lost.node} with stage {lost.index} is gone for more "
                f"than {after} s (recovery.freeAfterSeconds), and no other node can hold it"
            )
    return (plan.model_copy(update={"pipelines": tuple(kept)}) if kept else None), tuple(said)
