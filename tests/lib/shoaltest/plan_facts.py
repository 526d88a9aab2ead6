"""A model and nodes for plans: layers of 400 MiB, PCs with a GPU that hold some two dozen of them."""

from __future__ import annotations

from shoal.manifest import ModelShape
from shoal.plan.devices import GIB, MIB
from shoal.plan.document import Device
from shoal.plan.facts import ModelFacts, NodeFacts


def model(layers: int = 12, layer: int = 400 * MIB) -> ModelFacts:
    """`layer`: bytes of each."""
    shape = ModelShape(
        family="llama",
        layers=layers,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        vocab_size=32000,
        max_context=8192,
    )
    tensors = (250 * MIB, *(100 * MIB,) * layers, 250 * MIB)
    return ModelFacts(shape, 250 * MIB, (layer,) * layers, 250 * MIB, tensors, "d" * 64)


def node(name: str, gib: float = 12) -> NodeFacts:
    """A node whose memory is all there, free, and its devices'."""
    size = int(gib * GIB)
    return NodeFacts(name, (Device.GPU, Device.CPU), size, size, size)
