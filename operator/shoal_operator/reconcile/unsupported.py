"""What a ShardedModel may ask for and this version cannot do yet. Pure.

A field that would be left out silently, or that would only make pods crash, is refused by its name instead. Each line
goes when the part that it speaks of can do it.
"""

from __future__ import annotations

from zoneinfo import available_timezones

from shoal.plan.document import Device
from shoal.resource import SpeculativeMode
from shoal.resource.sharded_model import ShardedModelSpec


def unsupported(spec: ShardedModelSpec) -> tuple[str, ...]:
    """A line for each field that this version cannot honour: its name, why, what to do. Empty: all can be."""
    speculative, source = spec.scheduler.speculative, spec.model.source
    found = []
    draft = speculative.draft.source if speculative.draft is not None else None
    if speculative.mode is not SpeculativeMode.OFF and draft is not None and draft.local_path is not None:
        found.append(
            "spec.scheduler.speculative.draft.source.uri: a pod does not see file:// of your machine; "
            "use hf://, https:// or pypi://, or draft.volume"
        )
    if Device.NPU in spec.devices:
        found.append("spec.devices: stages do not run on the NPU yet; use GPU or CPU")
    if any(stage.device is Device.NPU for stage in spec.stages.manual):
        found.append("spec.stages.manual: stages do not run on the NPU yet; use device GPU or CPU")
    if source is not None and source.local_path is not None:
        found.append(
            "spec.model.source.uri: a pod does not see file:// of your machine; "
            "use hf://, https:// or pypi://, or spec.model.volume"
        )
    hours = spec.placement.working_hours
    if hours is not None and hours.time_zone not in available_timezones():
        found.append(
            f"spec.placement.workingHours.timeZone: {hours.time_zone} is no time zone; write one such as Europe/Berlin"
        )
    return tuple(found)
