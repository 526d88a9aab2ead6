"""Loading: what a person gets wrong is one line with the file, the line and the field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ManifestError
from shoal.manifest import Precision
from shoal.plan import Device
from shoal.plan.devices import GIB, KvElement
from shoal.resource import (
    KvPrecision,
    ShardedModel,
    SpeculativeMode,
    StagesMode,
    load_nodes,
    load_sharded_model,
    node_facts_of,
    parse_nodes,
    parse_sharded_model,
    plan_spec_of,
    sharded_model_from_object,
)
from shoal.resource.bounds import quantity_bytes

TEXT = """\
apiVersion: shoal.dev/v1alpha1
kind: ShardedModel
metadata:
  name: smollm2
spec:
  model:
    source:
      uri: hf://org/repo
  devices: [CPU]
  scheduler:
    streams: 8
"""


def test_a_manifest_with_its_defaults() -> None:
    model = parse_sharded_model(TEXT)
    spec = model.spec
    assert spec.scheduler.streams == 8
    assert spec.precision is Precision.INT4
    assert spec.stages.mode is StagesMode.AUTO
    assert spec.devices == (Device.CPU,)
    assert spec.placement.max_memory_fraction == 0.7
    assert spec.scheduler.kv_precision is KvPrecision.AUTO
    assert spec.scheduler.speculative.mode is SpeculativeMode.AUTO
    assert model.served_names == ("smollm2",)


def test_the_gpu_alone_is_the_default_device() -> None:
    """No silent fallback: a CPU stage has to be asked for."""
    assert parse_sharded_model(TEXT.replace("  devices: [CPU]\n", "")).spec.devices == (Device.GPU,)


def test_served_names_come_first() -> None:
    model = parse_sharded_model(TEXT.replace("  model:\n", "  model:\n    servedNames: [gpt, smollm2]\n"))
    assert model.served_names == ("gpt", "smollm2")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("streams: 8", "streams: 0", "m.yaml:11: spec.scheduler.streams: must be greater than or equal to 1, found 0"),
        ("streams: 8", "stream: 8", "m.yaml:11: spec.scheduler.stream: unknown field; did you mean streams?"),
        ("streams: 8", 'streams: "8"', "m.yaml:11: spec.scheduler.streams: must be a valid integer, found '8'"),
        ("streams: 8", "streams: true", "m.yaml:11: spec.scheduler.streams: must be a valid integer, found True"),
        ("  devices: [CPU]", "  device: CPU", "m.yaml:9: spec.device: unknown field; did you mean devices?"),
        ("[CPU]", "[GPU, GPU]", "m.yaml:9: spec.devices: GPU is listed twice"),
        ("[CPU]", "CPU", "m.yaml:9: spec.devices: must be a valid array, found 'CPU'"),
        ("kind: ShardedModel", "kind: Pod", "m.yaml:2: kind: must be 'ShardedModel', found 'Pod'"),
        ("  name: smollm2\n", "  labels: {}\n", "m.yaml:3: metadata.name: is required"),
        ("hf://org/repo", "s3://bucket", "m.yaml:8: spec.model.source.uri: uri must start with hf://"),
        ("hf://org/repo", "hf://org/repo\n      sha256: abc", "m.yaml:9: spec.model.source.sha256: "),
        (
            "streams: 8",
            "streams: 8\n    streams: 9",
            "m.yaml:12: spec.scheduler.streams: given twice (first in line 11)",
        ),
        ("streams: 8", "streams: [", "m.yaml:12: "),
        ("spec:", "---\nspec:", "m.yaml:5: holds several YAML documents; give one a file"),
        ("streams: 8", "streams: !!python/name:os.system 8", "m.yaml:11: could not determine a constructor"),
    ],
)
def test_mistakes_name_file_line_and_field(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(TEXT.replace(old, new), encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        load_sharded_model(path)
    message = str(caught.value)
    assert message.removeprefix(f"{tmp_path}/").startswith(line), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("- a\n- b\n", "must be a mapping of fields, it is a list"),
        ("x: " + "y" * 2_000_000, "more than 1 MiB"),
    ],
)
def test_what_is_no_manifest_is_said(text: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        parse_sharded_model(text)


def test_a_manifest_that_unfolds_without_end_is_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefg", "bcdefgh", strict=True)
    )
    with pytest.raises(ManifestError, match="more than 100000 fields"):
        parse_sharded_model(bomb)
    with pytest.raises(ManifestError, match="nested too deeply"):
        parse_sharded_model("a: &a [*a]")


def test_a_missing_and_a_binary_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no such file"):
        load_sharded_model(tmp_path / "nothing.yaml")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\xff\xfe\x00")
    with pytest.raises(ManifestError, match="not UTF-8 text"):
        load_sharded_model(tmp_path / "model.gguf")
    with pytest.raises(ManifestError, match="cannot be read: Is a directory"):
        load_sharded_model(tmp_path)


def test_null_means_not_given() -> None:
    """As for the API server: `stages:` with nothing behind it is the default."""
    model = parse_sharded_model(TEXT + "  stages:\n  precision: null\n")
    assert model.spec == parse_sharded_model(TEXT).spec


def test_a_date_stays_text() -> None:
    text = TEXT.replace("hf://org/repo", "hf://org/repo\n    revision: 2025-01-31")
    assert parse_sharded_model(text).spec.model.revision == "2025-01-31"


def test_a_plain_path_is_relative_to_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(TEXT.replace("hf://org/repo", "weights/a model.gguf"), encoding="utf-8")
    source = load_sharded_model(path).spec.model.source
    assert source is not None
    assert source.uri == (tmp_path / "weights/a model.gguf").as_uri()
    assert source.local_path == tmp_path / "weights/a model.gguf"


def test_a_fetched_source_has_no_local_path() -> None:
    source = parse_sharded_model(TEXT).spec.model.source
    assert source is not None
    assert source.local_path is None


def test_an_object_of_the_api_server_may_carry_more_metadata_and_a_status() -> None:
    body = parse_sharded_model(TEXT).model_dump(mode="json", by_alias=True, exclude_none=True)
    body["metadata"] |= {"uid": "1", "resourceVersion": "7", "managedFields": [], "generation": 3}
    body["status"] = {"observedGeneration": 3, "fromTheFuture": True, "replicas": 1}
    model = sharded_model_from_object(body)
    assert model.metadata.generation == 3
    assert model.status is not None
    assert model.status.replicas == 1
    body["spec"]["stages"] = {"count": -1}
    with pytest.raises(ManifestError, match=r"^ShardedModel smollm2: spec\.stages\.count: must be greater"):
        sharded_model_from_object(body)
    with pytest.raises(ManifestError, match="ShardedModel"):
        sharded_model_from_object({"metadata": "nonsense"})


def test_a_model_survives_json() -> None:
    model = parse_sharded_model(TEXT)
    assert ShardedModel.model_validate_json(model.model_dump_json(by_alias=True)) == model


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=200) | st.text("{}[]:-&*!|> \n\tab'\"", max_size=60))
def test_any_text_is_a_manifest_error_or_a_model(text: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_sharded_model(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("quantity", "value"),
    [("6Gi", 6 * GIB), ("512Mi", 512 << 20), ("1.5G", 1_500_000_000), (7, 7), ("2k", 2000), ("1500m", 1), ("0", 0)],
)
def test_quantities(quantity: int | str, value: int) -> None:
    assert quantity_bytes(quantity) == value


@pytest.mark.parametrize("power", range(5))
def test_every_unit_of_a_quantity_is_read(power: int) -> None:
    """Nodes state their memory in Ki."""
    assert quantity_bytes(f"3{['Ki', 'Mi', 'Gi', 'Ti', 'Pi'][power]}") == 3 * 1024 ** (power + 1)
    assert quantity_bytes(f"3{['k', 'M', 'G', 'T', 'P'][power]}") == 3 * 1000 ** (power + 1)


@pytest.mark.parametrize("quantity", ["6GB", "-1", "1e3", "", "Gi", "1 Gi"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity_bytes(quantity)


def test_the_spec_reaches_the_planner() -> None:
    text = TEXT.replace(
        "  scheduler:\n",
        "  replicas: 0\n  execution: {mode: Exact}\n"
        "  placement:\n    nodeSelector: {a: b}\n    sparePods: 2\n    nodeLimits: [{node: pc-1, memory: 6Gi}]\n"
        "  stages:\n    mode: Manual\n    manual: [{layers: {first: 0, last: 5}, node: pc-1, device: NPU}]\n"
        "  scheduler:\n",
    )
    spec = plan_spec_of(parse_sharded_model(text).spec)
    assert spec.replicas == 1
    assert spec.kv is KvElement.F32
    assert spec.node_limits == {"pc-1": 6 * GIB}
    assert spec.node_selector == {"a": "b"}
    assert spec.spare_nodes == 2
    (stage,) = spec.manual
    assert (stage.first, stage.last, stage.node, stage.device) == (0, 5, "pc-1", Device.NPU)


NODES = """\
nodes:
  - name: pc-1
    memory: {total: 32Gi, free: 20Gi}
    maxMemory: 8Gi
    speed: {GPU: 0.5}
    labels: {a: b}
  - name: pc-2
    devices: [CPU]
    memory: {total: 16Gi, free: 8Gi}
"""


def test_nodes_reach_the_planner() -> None:
    first, second = node_facts_of(parse_nodes(NODES))
    assert (first.memory_total, first.memory_free, first.memory_cap) == (32 * GIB, 20 * GIB, 8 * GIB)
    assert first.devices == (Device.GPU, Device.CPU)
    assert first.speeds == {Device.GPU: 0.5}
    assert first.labels == {"a": "b"}
    assert second.devices == (Device.CPU,)
    assert second.memory_cap is None


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("name: pc-2", "name: pc-1", "n.yaml:1: nodes: pc-1 is listed twice"),
        ("free: 20Gi", "free: 40Gi", "n.yaml:3: nodes[0].memory: free (40Gi) must not be greater than total (32Gi)"),
        ("8Gi\n    speed", "8GB\n    speed", "n.yaml:4: nodes[0].maxMemory: '8GB' is no quantity"),
        ("{GPU: 0.5}", "{GPU: 0}", "n.yaml:5: nodes[0].speed.GPU: must be greater than 0, found 0"),
        ("devices: [CPU]", "device: [CPU]", "n.yaml:8: nodes[1].device: unknown field; did you mean devices?"),
    ],
)
def test_mistakes_in_a_nodes_file_name_the_field(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = tmp_path / "n.yaml"
    path.write_text(NODES.replace(old, new), encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        load_nodes(path)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(line), str(caught.value)
