"""What a stage costs on a node: memory at its peak and time for one token.

A stage is layers [start, end). The first one also holds the embedding, the last one the head. Both costs grow with
the range, which the search relies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from shoal.plan.devices import PROFILES
from shoal.plan.document import Device, MemorySum
from shoal.plan.facts import ModelFacts, NodeFacts, PlanSpec


@dataclass(frozen=True, slots=True)
class Site:
    """A node with the device that it would use and the bytes that a stage may take there."""

    node: NodeFacts
    device: Device
    limit: int

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name


def memory_limit(node: NodeFacts, spec: PlanSpec) -> int:
    """Bytes that a stage may take on the node: the share of what is free, and no more than its caps."""
    caps = [cap for cap in (node.memory_cap, spec.node_limits.get(node.name)) if cap is not None]
    return min([int(spec.max_memory_fraction * node.usable), *caps])


@dataclass(frozen=True, slots=True)
class Work:
    """What a token takes of layers and head, in units of `unit` bytes: `sums` of the first layers, and the head's own.

    Whole numbers are summed, so that equal layers cost the same wherever they are.
    """

    sums: Sequence[int]
    head: int
    unit: float

    def of(self, start: int, end: int) -> float:
        """Bytes that stand for the layers [start, end), with the head behind the last one."""
        return (self.sums[end] - self.sums[start] + (self.head if end == len(self.sums) - 1 else 0)) * self.unit


class Costs:
    """Costs of every range of one model under one spec."""

    def __init__(self, model: ModelFacts, spec: PlanSpec) -> None:
        self.model = model
        self.layers = model.shape.layers
        self.kv_tokens = spec.streams * spec.context_for(model.shape)
        self._kv = spec.kv
        self._sums = list(accumulate(model.layer_bytes, initial=0))
        self._bytes = Work(self._sums, model.head_bytes, 1.0)
        self._weights = self._bytes
        if model.layer_weights:
            counts = list(accumulate(model.layer_weights, initial=0))
            per_weight = (self._sums[-1] + model.head_bytes) / max(counts[-1] + model.head_weights, 1)
            self._weights = Work(counts, model.head_weights, per_weight)

    @property
    def uniform(self) -> bool:
        """Whether all layers cost the same, so that only the number of layers in a stage counts."""
        model = self.model
        return all(
            len(set(each)) <= 1 for each in (model.layer_bytes, model.layer_weights, model.largest_tensors[1:-1])
        )

    def weights(self, start: int, end: int) -> int:
        """Bytes of the weights of the stage with layers [start, end)."""
        embed = self.model.embed_bytes if start == 0 else 0
        head = self.model.head_bytes if end == self.layers else 0
        return embed + self._sums[end] - self._sums[start] + head

    def memory(self, device: Device, start: int, end: int) -> MemorySum:
        """Peak memory of the stage on a device, term by term."""
        weights, load_peak, kv, runtime = self._terms(device, start, end)
        return MemorySum(weights=weights, load_peak=load_peak, kv=kv, runtime=runtime)

    def _terms(self, device: Device, start: int, end: int) -> tuple[int, int, int, int]:
        """Weights, load peak, KV and runtime."""
        profile = PROFILES[device]
        weights = self.weights(start, end)
        kv = self.kv_bytes_per_token(device, start, end) * self.kv_tokens
        return weights, int(weights * (profile.load_factor - 1)), kv, profile.runtime_bytes

    def kv_bytes_per_token(self, device: Device, start: int, end: int) -> int:
        """KV bytes that one token takes in the stage."""
        shape = self.model.shape
        element = self._kv or PROFILES[device].kv
        return element.bytes_per_head(shape.head_size) * shape.kv_heads * (end - start)

    def fits(self, site: Site, start: int, end: int) -> bool:
        """Whether the stage stays within the site's limit and the device's largest allocation."""
        # Asked very often: MemorySum.total without making the object.
        weights, load_peak, kv, runtime = self._terms(site.device, start, end)
        peak = weights + max(load_peak, kv) + runtime
        return peak <= site.limit and self.refused_tensor(site, start, end) is None

    def refused_tensor(self, site: Site, start: int, end: int) -> int | None:
        """Size of the stage's largest tensor, if it is more than the device can allocate in one piece."""
        most = PROFILES[site.device].largest_tensor
        if most is None:
            return None
        tensors = self.model.largest_tensors
        first = 0 if start == 0 else start + 1
        last = end + 2 if end == self.layers else end + 1
        largest = max(tensors[first:last])
        return largest if largest > most else None

    def compute_ms(self, site: Site, start: int, end: int) -> float:
        """Time of one token in the stage. The embedding reads one row only, so its table does not count.

        The whole model takes its bytes over the bandwidth on any device; how blocks share that depends on the device.
        """
        profile = PROFILES[site.device]
        work = self._weights if profile.by_weights else self._bytes
        speed = profile.bytes_per_second * site.node.speeds.get(site.device, 1.0)
        return work.of(start, end) / speed * 1000

    def stage_ms(self, site: Site, start: int, end: int) -> float:
        """Time of one token in the stage and on its hop.

        With as many micro-batches in flight as stages, a pipeline yields one every mean of (compute + hop): the hop
        belongs to the stage's time. A model on one node has no hop between stages.
        """
        hop = 0.0 if end - start == self.layers else site.node.link_ms
        return self.compute_ms(site, start, end) + hop

    def suits(self, site: Site, start: int, end: int, within_ms: float) -> bool:
        """Whether the stage fits and takes no longer than `within_ms`."""
        return self.stage_ms(site, start, end) <= within_ms and self.fits(site, start, end)

    def most_layers(self, site: Site, start: int, within_ms: float) -> int:
        """Largest end such that the stage [start, end) suits the site; `start` when not even one layer does.

        From layer 0 it stops before the last layer: a whole model on one node has no hop, and is asked for by itself.
        """
        low, high = start, self.layers - 1 if start == 0 else self.layers
        while low < high:
            middle = (low + high + 1) // 2
            if self.suits(site, start, middle, within_ms):
                low = middle
            else:
                high = middle - 1
        return low


def usable_sites(nodes: Sequence[NodeFacts], spec: PlanSpec) -> tuple[list[Site], list[str]]:
    """The nodes that the spec allows, by name, and why each of the others is not among them."""
    sites, refused = [], []
    for node in sorted(nodes, key=lambda each: each.name):
        missing = [f"{key}={value}" for key, value in spec.node_selector.items() if node.labels.get(key) != value]
        device = next((each for each in spec.devices if each in node.devices), None)
        if missing:
            refused.append(f"{node.name} has no label {missing[0]}")
        elif device is None:
            has = ", ".join(node.devices) or "no device"
            refused.append(f"{node.name} has {has}, spec.devices allows {', '.join(spec.devices)}")
        else:
            sites.append(Site(node=node, device=device, limit=memory_limit(node, spec)))
    return sites, refused
