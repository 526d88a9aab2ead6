"""The local runtime as benchmarks and the chaos harness start it: equal nodes on loopback, one thread a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from bench.systems.cut import equal_nodes
from shoal.manifest import Manifest, read_manifest
from shoal.plan import Device, ModelFacts, Plan, PlanSpec, make_plan
from shoal.plan.standby import with_standbys
from shoal.resource import SpeculativeMode
from shoal_cli.cache import openvino_dir
from shoal_cli.local.launch import LocalCommands

Commands = TypeVar("Commands", bound=LocalCommands)


def local_plan(manifest: Manifest, stages: int, standbys: int = 0, *, streams: int, max_context: int) -> Plan:
    """Stages on nodes that are alike, with so many standbys."""
    nodes = equal_nodes(stages + standbys)
    spec = PlanSpec(
        devices=(Device.CPU,), stage_count=stages, spare_nodes=standbys, streams=streams, max_context=max_context
    )
    facts = ModelFacts.of_manifest(manifest)
    return with_standbys(make_plan(facts, nodes, spec), facts, nodes, spec)


def local_commands(model: Path, *, streams: int, kind: type[Commands], **given: Any) -> Commands:
    """Command lines of this kind, kernels from the user's cache. `given`: fields that are not as usual here."""
    kernels = openvino_dir(read_manifest(model).digest)
    kernels.mkdir(parents=True, exist_ok=True)
    usual: dict[str, Any] = {
        "model": model,
        "openvino_cache": kernels,
        "host": "127.0.0.1",
        "port": 0,
        "served_names": ("bench",),
        "streams": streams,
        "max_context": 512,
        "prefill_chunk": 256,
        "max_queue": streams,
        "threads": 1,
        "exact": False,
        "prefix_cache": True,
        "recovery_attempts": 3,
        "recovery_seconds": 120,
        "speculative_mode": SpeculativeMode.OFF,
        "speculative_max_tokens": 1,
    }
    return kind(**usual | given)
