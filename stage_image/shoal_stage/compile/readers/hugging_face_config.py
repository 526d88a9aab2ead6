"""config.json as an `Architecture`. null means the default, as it does for Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import CheckpointError
from shoal_stage.compile.architecture import Architecture, LinearScaling, Llama3Scaling, Rope, RopeScaling
from shoal_stage.compile.families.family import Family
from shoal_stage.compile.readers.checkpoint import TensorView, layer_prefix


class _Config:
    """config.json with the types that are expected."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values = values
        self.path = path

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self.path}: {key} should be a number, it is {value!r}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if isinstance(value, float) and not value.is_integer():
            raise CheckpointError(f"{self.path}: {key} should be a whole number, it is {value}")
        return int(value)

    def below(self, key: str) -> _Config | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.path}: {key} should be an object, it is {value!r}")
        return _Config(value, self.path)


def read_architecture(
    values: Mapping[str, Any], path: Path, family: Family, tensors: Mapping[str, TensorView]
) -> Architecture:
    """The numbers of config.json; `tensors` decide on parts that the configuration does not name."""
    config = _Config(values, path)
    if (activation := values.get("hidden_act") or "silu") != "silu":
        raise CheckpointError(f"{path}: the activation {activation!r} is not known; known is silu")
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    first = layer_prefix(0)
    context, notes = _context(config, family)
    return Architecture(
        family=family.name,
        layers=config.integer("num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_size=config.integer("head_dim", hidden // max(heads, 1)),
        ffn_size=config.integer("intermediate_size"),
        vocab_size=config.integer("vocab_size"),
        max_context=context,
        norm_epsilon=config.number("rms_norm_eps"),
        rope=_rope(config),
        tied_embeddings=bool(values.get("tie_word_embeddings")),
        qkv_bias=family.qkv_bias.holds(f"{first}self_attn.q_proj.bias" in tensors),
        output_bias=family.output_bias.holds(f"{first}self_attn.o_proj.bias" in tensors),
        qk_norm=family.qk_norm.holds(f"{first}self_attn.q_norm.weight" in tensors),
        notes=notes,
    )


def _context(config: _Config, family: Family) -> tuple[int, tuple[str, ...]]:
    """The context, cut to a sliding window where the model has one: up to there both attentions are the same."""
    context = config.integer("max_position_embeddings")
    switched_on = family.windowed or config.values.get("use_sliding_window") is True
    window = config.integer("sliding_window", 0) if switched_on else 0
    if 0 < window < context:
        return window, (f"context cut from {context} to the sliding window of {window} tokens",)
    return context, ()


def _rope(config: _Config) -> Rope:
    # Transformers 5 moved theta and the scaling into rope_parameters.
    scaling = config.below("rope_scaling") or config.below("rope_parameters")
    theta = config.values.get("rope_theta") or (scaling.values.get("rope_theta") if scaling else None) or 10000.0
    if not isinstance(theta, int | float) or theta <= 0:
        raise CheckpointError(f"{config.path}: rope_theta should be a positive number, it is {theta!r}")
    partial = config.values.get("partial_rotary_factor")
    if partial not in (None, 1, 1.0):
        raise CheckpointError(f"{config.path}: it rotates only {partial} of each head, which shoal does not run")
    return Rope(float(theta), _scaling(scaling) if scaling else None)


def _scaling(scaling: _Config) -> RopeScaling | None:
    kind = scaling.values.get("rope_type") or scaling.values.get("type") or "default"
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(scaling.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=scaling.number("factor"),
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
                original_context=scaling.integer("original_max_position_embeddings"),
            )
    raise CheckpointError(f"{scaling.path}: the RoPE scaling {kind!r} is not known; known are linear and llama3")
