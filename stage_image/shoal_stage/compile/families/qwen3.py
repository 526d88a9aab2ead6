"""Qwen3 (dense): Llama's layer with an RMS norm on every head's q and k, and a head size of its own."""

from shoal_stage.compile.families.family import Family, Presence

FAMILY = Family(
    name="qwen3",
    gguf=("qwen3",),
    hugging_face=("qwen3",),
    qkv_bias=Presence.AS_STORED,
    output_bias=Presence.AS_STORED,
    qk_norm=Presence.ALWAYS,
)
