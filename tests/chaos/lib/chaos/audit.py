"""What must be true when all is over: nothing runs, nothing is held, and no process has grown."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from chaos.system import System

FREE_SECONDS = 20.0
GROWN_BYTES = 48 << 20
WARM_SECONDS = 60.0
"""A process fills its caches and arenas first."""
_SAMPLE_SECONDS = 2.0


@dataclass(slots=True)
class Memory:
    """Resident bytes of every process over its life: (seconds, bytes) by process id."""

    samples: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    async def watch(self, system: System) -> None:
        """Take samples until cancelled."""
        while True:
            names = ["router", *(seat.name for seat in system.local.stages)]
            for name in names:
                pid = system.local.pid_of(name)
                if pid is None:
                    continue
                with suppress(psutil.Error):
                    self.samples.setdefault(pid, []).append((time.monotonic(), psutil.Process(pid).memory_info().rss))
                    self.names[pid] = name
            await asyncio.sleep(_SAMPLE_SECONDS)

    def growth(self) -> dict[str, int]:
        """By how many bytes each process that lived long grew after it was warm: its last quarter over its first."""
        grown = {}
        for pid, samples in self.samples.items():
            warm = [size for at, size in samples if at - samples[0][0] > WARM_SECONDS]
            quarter = len(warm) // 4
            if quarter >= 5:
                first, last = sorted(warm[:quarter]), sorted(warm[-quarter:])
                grown[f"{self.names[pid]} ({pid})"] = last[quarter // 2] - first[quarter // 2]
        return grown


async def leaks(system: System) -> list[str]:
    """What is still held although nobody asks for anything; waits for it to be let go."""
    found: list[str] = ["not looked yet"]
    end = time.monotonic() + FREE_SECONDS
    async with httpx.AsyncClient(base_url=system.url, trust_env=False, timeout=10.0) as http:
        while found and time.monotonic() < end:
            await asyncio.sleep(0.2)
            status: dict[str, Any] = (await http.get("/status")).json()
            found = [f"the router: {name} is {status[name]}" for name in ("running", "waiting") if status[name]]
            if not status["ready"]:
                found.append(f"the router is not ready: {status['detail']}")
            if status["kv_blocks_free"] != status["kv_blocks"]:
                found.append(f"the router: {status['kv_blocks_free']} of {status['kv_blocks']} KV blocks are free")
            for seat in system.local.stages:
                held = (await system.describe(seat)).held
                if held:
                    found.append(f"{seat.name} holds {held} sequences")
    return found


def grown(memory: Memory) -> list[str]:
    """Processes whose memory is not flat."""
    return [f"{name} grew by {size / 2**20:.0f} MiB" for name, size in memory.growth().items() if size > GROWN_BYTES]
