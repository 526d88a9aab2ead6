"""A model's facts as one short line of JSON: a compile Job's last words, from which an operator learns what to plan.

A pod's termination message ends at 4096 bytes, so equal sizes that follow each other are counted, not repeated:
`[[131072000, 32]]` are 32 layers of that size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from shoal.manifest import ModelShape, Sha256
from shoal.plan.facts import ModelFacts

Run = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1, le=100_000)]]


class _Document(BaseModel):
    # A Job of a newer image may say more than this version asks for.
    model_config = ConfigDict(extra="ignore", frozen=True)

    shape: ModelShape
    embed: int = Field(ge=0)
    layers: tuple[Run, ...]
    head: int = Field(ge=0)
    tensors: tuple[Run, ...]
    digest: Sha256 | None
    layer_weights: tuple[Run, ...] = ()
    head_weights: int = Field(default=0, ge=0)


def facts_to_json(facts: ModelFacts) -> str:
    """One line."""
    document = _Document(
        shape=facts.shape,
        embed=facts.embed_bytes,
        layers=_runs(facts.layer_bytes),
        head=facts.head_bytes,
        tensors=_runs(facts.largest_tensors),
        digest=facts.digest,
        layer_weights=_runs(facts.layer_weights),
        head_weights=facts.head_weights,
    )
    # What is not known is left out: facts of an earlier version stay the line that they were.
    return json.dumps(document.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))


def facts_from_json(text: str) -> ModelFacts:
    """The facts of such a line. Raises ValueError for anything else."""
    document = _Document.model_validate_json(text)
    return ModelFacts(
        shape=document.shape,
        embed_bytes=document.embed,
        layer_bytes=_sizes(document.layers),
        head_bytes=document.head,
        largest_tensors=_sizes(document.tensors),
        digest=document.digest,
        layer_weights=_sizes(document.layer_weights),
        head_weights=document.head_weights,
    )


def _runs(sizes: Iterable[int]) -> tuple[Run, ...]:
    return tuple((size, len(list(same))) for size, same in groupby(sizes))


def _sizes(runs: Iterable[Run]) -> tuple[int, ...]:
    return tuple(size for size, count in runs for _ in range(count))
