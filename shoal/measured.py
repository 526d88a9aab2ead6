"""What a router measured once of a plan that it serves, told to the operator, and which plan that was. Pure.

The figures are of one user while nobody else asks, as requests are served: with speculation, if it is on. They change
when the plan does, and never by themselves.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from shoal.plan.document import Plan

MEASURED_PATH: Final = "/measured"
"""On the router's metrics port."""


class Measured(BaseModel):
    """The figures. `placement`: of which plan; see `placement_of`."""

    # A router of a newer version may say more.
    model_config = ConfigDict(extra="ignore", frozen=True)

    placement: str
    first_token_ms: float = Field(ge=0, alias="firstTokenMs", description="from the request to its first token")
    tokens_per_second: float = Field(ge=0, alias="tokensPerSecond", description="of what follows the first token")
    prompt_tokens: int = Field(ge=0, alias="promptTokens")


def placement_of(plan: Plan) -> str:
    """Names what decides the figures: the model, and which device of which node holds which blocks. Not standbys."""
    stages = [
        [pipeline.index, stage.node, stage.device.value, stage.block_start, stage.block_end]
        for pipeline in plan.pipelines
        for stage in pipeline.stages
    ]
    return hashlib.sha256(json.dumps([plan.model_digest, stages]).encode()).hexdigest()[:16]
