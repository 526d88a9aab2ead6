"""The model families that shoal knows: one small module each, listed here. Another family is another module."""

from __future__ import annotations

from shoal.errors import CheckpointError
from shoal_stage.compile.families import llama, mistral, qwen2, qwen3
from shoal_stage.compile.families.family import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY)


def family_of_gguf(architecture: str, origin: str) -> Family:
    """The family of a GGUF file's `general.architecture`."""
    return _find(architecture, origin, {name: family for family in FAMILIES for name in family.gguf})


def family_of_hugging_face(model_type: str, origin: str) -> Family:
    """The family of a config.json's `model_type`."""
    return _find(model_type, origin, {name: family for family in FAMILIES for name in family.hugging_face})


def _find(name: str, origin: str, known: dict[str, Family]) -> Family:
    try:
        return known[name]
    except KeyError:
        raise CheckpointError(
            f"{origin} is of the architecture {name!r}, which shoal does not know; known are {', '.join(sorted(known))}"
        ) from None
