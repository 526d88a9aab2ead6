"""What a doctor found on a node, as annotations of its Node object: written by the doctor, read for the planner. Pure.

shoal.dev/refused-devices: GPU,NPU        they compute wrong or slowly: no stage may come there
shoal.dev/link-ms: "0.41"                 round trip to the farthest of the measured nodes
shoal.dev/link-mbps: "112"                megabytes a second to the slowest of them
shoal.dev/gbps-gpu: "87.5"                weights that the device reads, GB/s
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from shoal.plan.document import Device

PREFIX: Final = "shoal.dev/"
REFUSED: Final = f"{PREFIX}refused-devices"
LINK_MS: Final = f"{PREFIX}link-ms"
LINK_MBPS: Final = f"{PREFIX}link-mbps"
GBPS: Final = f"{PREFIX}gbps-"


@dataclass(frozen=True, slots=True)
class NodeFindings:
    """See the module. What was not measured is None or missing."""

    refused: frozenset[Device] = frozenset()
    link_ms: float | None = None
    link_mbps: float | None = None
    gbps: Mapping[Device, float] = field(default_factory=dict)


def to_annotations(found: NodeFindings) -> dict[str, str]:
    """The annotations; nothing for what was not measured."""
    written = {f"{GBPS}{device.lower()}": f"{value:.1f}" for device, value in found.gbps.items()}
    if found.refused:
        written[REFUSED] = ",".join(sorted(found.refused))
    if found.link_ms is not None:
        written[LINK_MS] = f"{found.link_ms:.2f}"
    if found.link_mbps is not None:
        written[LINK_MBPS] = f"{found.link_mbps:.0f}"
    return written


def from_annotations(annotations: Mapping[str, str]) -> NodeFindings:
    """What annotations say. Anybody may write them: what makes no sense is as if it were not there."""
    refused = {name.strip() for name in annotations.get(REFUSED, "").split(",")}
    speeds = {device: _positive(annotations.get(f"{GBPS}{device.lower()}")) for device in Device}
    return NodeFindings(
        refused=frozenset(device for device in Device if device in refused),
        link_ms=_positive(annotations.get(LINK_MS)),
        link_mbps=_positive(annotations.get(LINK_MBPS)),
        gbps={device: value for device, value in speeds.items() if value is not None},
    )


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if isfinite(value) and value > 0 else None
