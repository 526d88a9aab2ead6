"""What `shoal` refuses: one line that says what, where and what to do, an exit code, and nothing left behind."""

from __future__ import annotations

import re
import shutil
import socket
import struct
from pathlib import Path

import pytest


def refused(shoal, code: int, pattern: str) -> None:
    """It ended with `code` and one error line that matches; no process stays."""
    assert shoal.end() == code, shoal.output()
    errors = [line for line in shoal.err.read_text().splitlines() if line.startswith("shoal: error: ")]
    assert len(errors) == 1, shoal.output()
    assert re.search(pattern, errors[0]), errors[0]
    assert shoal.left_over() == []


def partial(cache: Path) -> list[Path]:
    return list(cache.glob("shoal/models/*"))


def edited(manifest: Path, old: str, new: str) -> Path:
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))
    return manifest


def test_a_port_in_use_is_found_before_anything_is_compiled(start, manifest: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shoal = start("run", manifest, "--port", port, cache=tmp_path / "cache")
        refused(shoal, 5, f"port {port} on 127.0.0.1 is in use: .*--port")
    assert partial(tmp_path / "cache") == []


@pytest.mark.parametrize("command", ["run", "plan", "compile"])
def test_a_manifest_that_is_not_there(start, command: str) -> None:
    refused(start(command, "nowhere.yaml"), 2, r"nowhere\.yaml: no such file")


@pytest.mark.parametrize(
    ("old", "new", "pattern"),
    [
        ("streams: 2", "streams: two", r"smollm2\.yaml:\d+: spec\.scheduler\.streams"),
        ("devices: [CPU]", "device: [CPU]", r"smollm2\.yaml:\d+: spec\.device"),
        ("devices: [CPU]", "devices: [CPU", r"smollm2\.yaml:\d+"),
        ("kind: ShardedModel", "kind: Pod", r"smollm2\.yaml:\d+: kind"),
        ("maxContext: 512", "maxContext: 9000", r"maxContext is 9000.*8192"),
        ("devices: [CPU]", "devices: [NPU]", r"spec\.devices allows NPU"),
    ],
)
def test_a_wrong_manifest_is_named_with_its_line(start, manifest: Path, old: str, new: str, pattern: str) -> None:
    shoal = start("plan", edited(manifest, old, new))
    refused(shoal, 3 if "NPU" in new else 2, pattern)


def test_a_checkpoint_that_is_not_there(start, manifest: Path, checkpoint: Path, tmp_path: Path) -> None:
    shoal = start("run", edited(manifest, str(checkpoint), str(tmp_path / "none.gguf")), "--port", 0)
    refused(shoal, 2, r"none\.gguf does not exist")


def test_a_checkpoint_with_another_digest(start, manifest: Path, checkpoint: Path, tmp_path: Path) -> None:
    uri = f"uri: {checkpoint}"
    shoal = start("run", edited(manifest, uri, f"{uri}, sha256: {'ab' * 32}"), "--port", 0, cache=tmp_path / "cache")
    refused(shoal, 4, rf"{re.escape(checkpoint.name)} has sha256 .*, abab.* is expected")
    assert partial(tmp_path / "cache") == []


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize("command", ["run", "plan", "inspect"])
def test_an_architecture_that_is_not_known(
    start, manifest: Path, checkpoint: Path, tmp_path: Path, command: str
) -> None:
    other = tmp_path / "mamba.gguf"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    other.write_bytes(header + gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("mamba"))
    target = other if command == "inspect" else edited(manifest, str(checkpoint), str(other))
    refused(start(command, target, cache=tmp_path / "cache"), 2, "mamba")
    assert partial(tmp_path / "cache") == []


def test_a_truncated_checkpoint(start, manifest: Path, checkpoint: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with checkpoint.open("rb") as whole:
        cut.write_bytes(whole.read(40_000_000))
    shoal = start("run", edited(manifest, str(checkpoint), str(cut)), "--port", 0, cache=tmp_path / "cache")
    refused(shoal, 2, r"cut\.gguf")
    assert partial(tmp_path / "cache") == []


def test_a_full_disk_is_told_and_the_compile_goes_on_when_there_is_room(start, manifest: Path, tmp_path: Path) -> None:
    # A limit on the size of files stands in for a full disk: blocks do not fit, and neither does what tries the disk.
    cache = tmp_path / "cache"
    refused(start("compile", manifest, cache=cache, largest_file_kib=512), 5, "full.*free space and run")
    assert not [path for path in partial(cache) if path.suffix != ".partial"]
    assert start("compile", manifest, cache=cache).end() == 0


@pytest.mark.parametrize("block", ["embed.bin", "layer-029.bin"])
def test_a_block_that_was_changed_on_the_disk_is_refused_by_its_stage(
    start, manifest: Path, tmp_path: Path, session_cache, block: str
) -> None:
    first = start("compile", manifest)
    assert first.end() == 0, first.output()
    model = Path(first.out.read_text().strip())
    copy = tmp_path / "cache" / "shoal" / "models" / model.name
    shutil.copytree(model, copy)
    target = copy / "blocks" / block
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    shoal = start("run", manifest, "--stages", 2, "--port", 0, cache=tmp_path / "cache")
    refused(shoal, 4, rf"stage {0 if block == 'embed.bin' else 1} ended .*{block} has digest .*its manifest says")
    refused(start("inspect", copy, "--verify"), 4, rf"{block} has digest")
    assert start("inspect", model, "--verify").end() == 0


def test_more_stages_than_layers(start, manifest: Path) -> None:
    assert start("compile", manifest).end() == 0
    refused(start("run", manifest, "--stages", 31, "--port", 0), 3, "stages.count is 31, the model has 30 layers")


def test_a_plan_that_does_not_fit_names_the_sums(start, manifest: Path, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{name: tiny-pc, devices: [CPU], memory: {total: 1Gi, free: 512Mi}}]\n")
    refused(start("plan", manifest, "--nodes", nodes), 3, "no plan fits 30 layers.*tiny-pc")
