"""The compiler: a checkpoint becomes a model directory, block by block. See `compile_model` and `describe_checkpoint`.

The names below are loaded when asked for: OpenVINO and the readers take a second to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal_stage.compile.compiler import CompileOptions, compile_model
    from shoal_stage.compile.estimate import CheckpointFacts, describe_checkpoint, describe_config
    from shoal_stage.compile.fetch import ResolvedSource, fetch_config, resolve_source

_HOMES = {
    "CompileOptions": "compiler",
    "compile_model": "compiler",
    "CheckpointFacts": "estimate",
    "describe_checkpoint": "estimate",
    "describe_config": "estimate",
    "ResolvedSource": "fetch",
    "fetch_config": "fetch",
    "resolve_source": "fetch",
}

__all__ = [
    "CheckpointFacts",
    "CompileOptions",
    "ResolvedSource",
    "compile_model",
    "describe_checkpoint",
    "describe_config",
    "fetch_config",
    "resolve_source",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
