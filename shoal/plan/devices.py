"""What the planner assumes of a device until somebody has measured it: memory factors, speed, KV element sizes.

Sources: the load peak of an integrated GPU is about twice the model (openvino.genai#1636: 7B INT4 takes 16 GB while
loading, 5.7 GB after; openvino#28009 and openvino_notebooks#2241 report as much); one allocation above 4 GiB fails on
the Lunar Lake GPU. Speeds: one token reads every weight once, so a model's time is its weights over the bandwidth that
the device reaches; an 8B INT4 model at 24.6 tokens/s on a Lunar Lake GPU is 110 GB/s. CPU and NPU reach about half.
GPU and NPU wait for memory, so a block's share of that time is its share of the bytes. A CPU is kept busy by the
products: a weight of 8 bits takes about as long as one of 4, and a block's share is its share of the weights. Measured
with SmolLM2 in INT4 on one AVX2 core: its INT8 head takes as long as 7 layers in a step; that is 8 by weights and 15 by
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.plan.document import Device

MIB: Final = 1 << 20
GIB: Final = 1 << 30


class KvElement(StrEnum):
    """How keys and values are stored."""

    U8 = "U8"
    F16 = "F16"
    F32 = "F32"

    def bytes_per_head(self, head_size: int) -> int:
        """Bytes of one token's key and value in one KV head of one layer.

        U8 carries its scales: OpenVINO's CPU pages hold 40 rows of keys for 32 tokens and head_size + 8 bytes a value.
        """
        if self is KvElement.U8:
            return -(-head_size * 40 // 32) + head_size + 8
        return 2 * head_size * (2 if self is KvElement.F16 else 4)


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Assumptions about one kind of device.

    `load_factor`: peak over resident weights while loading. `runtime_bytes`: the process beside weights and KV.
    `bytes_per_second`: weights read in decode, at relative speed 1. `by_weights`: blocks share the time by how many
    weights they have, not by how many bytes. `largest_tensor`: None = no limit.
    `kv`: how keys and values are stored unless the spec says otherwise. F16 everywhere: U8 halves the memory, but on an
    AVX2 CPU a SmolLM2 step took 5 % longer with it after 150 tokens and 9 % after 1,000, and it rounds more.
    """

    load_factor: float
    runtime_bytes: int
    bytes_per_second: float
    kv: KvElement
    largest_tensor: int | None
    by_weights: bool = False


PROFILES: Final = {
    Device.CPU: DeviceProfile(1.3, 512 * MIB, 55e9, KvElement.F16, None, by_weights=True),
    Device.GPU: DeviceProfile(2.2, 768 * MIB, 110e9, KvElement.F16, 4 * GIB),
    Device.NPU: DeviceProfile(2.2, 768 * MIB, 55e9, KvElement.F16, 4 * GIB),
}
