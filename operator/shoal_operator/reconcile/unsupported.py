"""What a ShardedModel may ask for and this version cannot do yet. Pure.

A field that would be left out silently, or that would only make pods crash, is refused by its name instead. Each line
goes when the part that it speaks of can do it.
"""

from __future__ import annotations

from shoal.plan.document import Device
from shoal.resource import SpeculativeMode
from shoal.resource.sharded_model import ShardedModelSpec


def unsupported(spec: ShardedModelSpec) -> tuple[str, ...]:
    """A line for each field that this version cannot honour: its name, why, what to do. Empty: all can be."""
    speculative, source = spec.scheduler.speculative, spec.model.source
    found = []
    if speculative.mode is not SpeculativeMode.OFF and speculative.draft is not None:
        found.append("spec.scheduler.speculative.draft: no draft model runs beside the router yet; leave it out")
    if Device.NPU in spec.devices:
        found.append("spec.devices: stages do not run on the NPU yet; use GPU or CPU")
    if any(stage.device is Device.NPU for stage in spec.stages.manual):
        found.append("spec.stages.manual: stages do not run on the NPU yet; use device GPU or CPU")
    if source is not None and source.local_path is not None:
        found.append(
            "spec.model.source.uri: a pod does not see file:// of your machine; "
            "use hf://, https:// or pypi://, or spec.model.volume"
        )
    return tuple(found)
