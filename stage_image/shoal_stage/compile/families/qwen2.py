"""Qwen2 and Qwen2.5: Llama's layer with a bias on q, k and v."""

from shoal_stage.compile.families.family import Family, Presence

FAMILY = Family(name="qwen2", gguf=("qwen2",), hugging_face=("qwen2",), qkv_bias=Presence.ALWAYS)
