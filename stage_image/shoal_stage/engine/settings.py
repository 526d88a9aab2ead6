"""What an engine is told: device, exactness, KV memory. One dataclass for all engines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shoal.errors import UsageError
from shoal.plan.document import Device

BLOCK_SIZE = 32
"""Tokens of a KV block where a device does not say otherwise: what OpenVINO's paged attention uses on the CPU."""


class EngineKind(StrEnum):
    """How a stage keeps its KV. `paged` is the default; `stateful` is the paper's form."""

    PAGED = "paged"
    STATEFUL = "stateful"


class Rewind(StrEnum):
    """How the stateful engine forgets rejected positions: MASK keeps them masked until they are many (the paper's
    way), TRIM takes them out of the state at once. Same result, other costs: `python -m bench rewind`.
    """

    MASK = "mask"
    TRIM = "trim"


class KvPrecision(StrEnum):
    """Element type of the KV cache."""

    U8 = "u8"
    F16 = "f16"
    F32 = "f32"

    @property
    def bytes(self) -> int:
        """Bytes of an element, scales of u8 left out."""
        return {"u8": 1, "f16": 2, "f32": 4}[self.value]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`sequences`: how many may be held at once. `kv_blocks`: pages of the paged engine; None gives every sequence
    its whole `max_context`. `exact`: token-identical for every split, batch and engine (f32 throughout).
    `rewind`: how the stateful engine forgets.
    """

    device: Device = Device.CPU
    exact: bool = False
    kv_precision: KvPrecision | None = None
    sequences: int = 8
    max_context: int = 2048
    kv_blocks: int | None = None
    threads: int | None = None
    cache_dir: Path | None = None
    rewind: Rewind = Rewind.MASK

    def __post_init__(self) -> None:
        if self.exact and self.kv_precision not in (None, KvPrecision.F32):
            raise UsageError(f"exact mode keeps the KV cache in f32: leave out --kv-precision {self.kv_precision}")

    @property
    def kv(self) -> KvPrecision:
        """The KV precision that is meant: f32 in exact mode, else f16 unless said otherwise.

        The planner counts with the same default (`shoal.plan.devices`).
        """
        return KvPrecision.F32 if self.exact else self.kv_precision or KvPrecision.F16

    def blocks(self, block_size: int = BLOCK_SIZE) -> int:
        """KV blocks of the pool, each of `block_size` tokens."""
        return self.kv_blocks or self.sequences * -(-self.max_context // block_size)
