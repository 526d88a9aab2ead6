"""Llama 1 to 3.3, SmolLM2 and everything that shares the architecture.

Llama 3.1 and later stretch RoPE: `rope_scaling` of type llama3 in config.json, `rope_freqs.weight` in GGUF.
"""

from shoal_stage.compile.families.family import Family, Presence

FAMILY = Family(
    name="llama",
    gguf=("llama",),
    hugging_face=("llama",),
    gguf_interleaves_rope=True,
    qkv_bias=Presence.AS_STORED,
    output_bias=Presence.AS_STORED,
)
