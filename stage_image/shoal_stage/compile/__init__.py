"""The compiler: a checkpoint becomes a model directory, block by block. See `compile_model` and `describe_checkpoint`.

The names below are loaded when asked for: OpenVINO and the readers take a second to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal_stage.compile.compiler import CompileOptions, compile_model
    from shoal_stage.compile.estimate import CheckpointFacts, describe_checkpoint
    from shoal_stage.compile.fetch import ResolvedSource, resolve_source

_HOMES = {
    "CompileOptions": "compiler",
    "compile_model": "compiler",
    "CheckpointFacts": "estimate",
    "describe_checkpoint": "estimate",
    "ResolvedSource": "fetch",
    "resolve_source": "fetch",
}

__all__ = [
    "CheckpointFacts",
    "CompileOptions",
    "ResolvedSource",
    "compile_model",
    "describe_checkpoint",
    "resolve_source",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
