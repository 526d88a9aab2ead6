"""Mistral 7B, Nemo, Small: Llama's layer, a head size of its own, in early releases a sliding window.

GGUF files of Mistral say `llama`. A window is not built: the context is cut to it, where both are the same.
"""

from shoal_stage.compile.families.family import Family

FAMILY = Family(name="mistral", gguf=(), hugging_face=("mistral",), windowed=True)
