"""What a stage server asks of an engine: the seam between the wire and OpenVINO.

An engine runs consecutive blocks of one model on one device. It is called from one thread only (the compute
thread) and knows nothing of epochs, frames, sampling or other stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.wire.messages import KvCapacity, Row


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine found out while loading. `execution_devices` is what OpenVINO says it really uses."""

    engine: str
    device: str
    execution_devices: tuple[str, ...]
    exact: bool
    hidden_size: int
    vocab_size: int
    fused_attention: int
    versions: dict[str, str]


class Engine(Protocol):
    """Runs steps. Rows are ragged: each brings its own number of tokens, all at the positions it names."""

    @property
    def info(self) -> EngineInfo:
        """Facts of the loaded chain."""
        ...

    @property
    def capacity(self) -> KvCapacity:
        """The KV memory that was allocated."""
        ...

    def run(self, rows: Sequence[Row], hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """One forward pass of all rows.

        `hidden` is None on the first stage, else [T, H] with T the sum of the rows' lengths. Returns hidden
        [T, H], or on the last stage logits [S, V] for the rows' sampled positions, in order (S may be 0).
        A row whose `past_len` is smaller than what its sequence holds rolls the sequence back first.
        The returned array is valid until the next call. Raises InvalidFrame when a row leaves a gap.
        """
        ...

    def release(self, seqs: Sequence[int]) -> None:
        """Free what the sequences hold. Unknown sequences are ignored: a release may come twice."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...
