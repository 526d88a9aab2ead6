"""This machine as nodes: a container's limits count, and parts share memory and speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.plan import Device
from shoal_cli.local import machine
from shoal_cli.local.machine import Machine, as_nodes, this_machine

MIB = 2**20


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def test_a_container_s_memory_limit_counts_and_its_file_cache_is_free(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text(f"{64 * MIB}\n")
    (cgroup / "memory.current").write_text(f"{40 * MIB}\n")
    (cgroup / "memory.stat").write_text(f"anon {10 * MIB}\ninactive_file {30 * MIB}\n")
    found = this_machine()
    assert (found.memory_total, found.memory_free) == (64 * MIB, 54 * MIB)


def test_a_container_s_cpu_quota_counts(cgroup: Path) -> None:
    (cgroup / "cpu.max").write_text("100000 100000\n")
    assert this_machine().cores == 1


def test_no_limits_are_no_limits(cgroup: Path) -> None:
    unlimited = this_machine()
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "cpu.max").write_text("max 100000\n")
    limited = this_machine()
    assert (limited.memory_total, limited.cores) == (unlimited.memory_total, unlimited.cores)


def test_parts_share_the_machine() -> None:
    nodes = as_nodes(Machine(900 * MIB, 600 * MIB, 4, (Device.CPU,)), 3)
    assert [node.name for node in nodes] == ["local-0", "local-1", "local-2"]
    assert sum(node.memory_free for node in nodes) == 600 * MIB
    assert {node.speeds[Device.CPU] for node in nodes} == {1 / 3}
