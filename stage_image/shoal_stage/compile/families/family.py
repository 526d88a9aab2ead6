"""What distinguishes a family of models, as data. The parts of a transformer that they share are in `graph`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shoal_stage.compile.graph.layer import LayerBuilder, decoder_layer


class Presence(Enum):
    """Whether the models of a family have an optional part."""

    ALWAYS = "always"
    NEVER = "never"
    AS_STORED = "as stored"
    """The checkpoint decides: the part is there when its tensors are."""

    def holds(self, stored: bool) -> bool:
        """Does a model have the part, given whether its tensors are stored? Missing tensors are reported later."""
        return self is Presence.ALWAYS or (self is Presence.AS_STORED and stored)


@dataclass(frozen=True, slots=True)
class Family:
    """A family: the names it goes by in files, and which optional parts its layers have."""

    name: str
    gguf: tuple[str, ...]
    hugging_face: tuple[str, ...]
    gguf_interleaves_rope: bool = False
    """GGUF stores q and k rows of this family for rotation of neighbouring elements; the graph rotates halves."""
    qkv_bias: Presence = Presence.NEVER
    output_bias: Presence = Presence.NEVER
    qk_norm: Presence = Presence.NEVER
    windowed: bool = False
    """`sliding_window` of config.json limits attention whenever it is set, without a switch of its own."""
    build_layer: LayerBuilder = decoder_layer
