"""Which directory of the cache belongs to a ShardedModel, and what of a ShardedModel applies to one machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import IntegrityError, ManifestError, PlanError, UsageError
from shoal.manifest import (
    Block,
    BlockKind,
    FileEntry,
    Manifest,
    ModelShape,
    Precision,
    file_sha256,
)
from shoal.plan.document import Device
from shoal.plan.facts import ModelFacts
from shoal.resource import ExecutionMode, ShardedModel, StagesMode, parse_sharded_model
from shoal.vocabulary import Vocabulary
from shoal_cli.commands.compile import stem_of
from shoal_cli.local import models
from shoal_cli.local.adapt import (
    check_exposure,
    cluster_only,
    for_this_machine,
    local_plan,
    missing_standbys,
    parts_wanted,
    without_effect,
)
from shoal_cli.local.machine import Machine
from shoal_cli.local.models import (
    cache_path,
    find_or_compile,
    model_facts,
    source_reference,
    volume_path,
    with_options,
)
from shoal_stage.engine.fake import fake_manifest

SHAPE = ModelShape(
    family="llama", layers=2, hidden_size=8, heads=2, kv_heads=1, head_size=4, vocab_size=16, max_context=64
)


def sharded_model(spec: str, base: Path = Path("/models")) -> ShardedModel:
    text = f"apiVersion: shoal.dev/v1alpha1\nkind: ShardedModel\nmetadata: {{name: tiny}}\nspec: {{{spec}}}\n"
    return parse_sharded_model(text, base=base)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shoal"


def write_model_directory(path: Path) -> Manifest:
    """A model directory whose files hold nonsense with the right digests."""

    def file(name: str) -> FileEntry:
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(name)
        return FileEntry(path=name, bytes=len(name), sha256=file_sha256(target))

    kinds = {"embed": BlockKind.EMBED, "l0": BlockKind.LAYER, "l1": BlockKind.LAYER, "head": BlockKind.HEAD}
    manifest = Manifest(
        name="tiny",
        source_sha256="0" * 64,
        precision=Precision.INT4,
        shape=SHAPE,
        tied_embeddings=True,
        blocks=tuple(
            Block(name=n, kind=k, xml=file(f"blocks/{n}.xml"), bin=file(f"blocks/{n}.bin"), weight_bytes=30)
            for n, k in kinds.items()
        ),
        tokenizer=(file("tokenizer/tokenizer.json"), file("tokenizer/chat_template.jinja")),
    )
    (path / "manifest.json").write_bytes(manifest.canonical_json())
    return manifest


def path_of(spec: str) -> Path:
    model = sharded_model(spec)
    assert model.spec.model.source is not None
    return cache_path(model, model.spec.model.source)


def test_the_directory_s_name_follows_from_everything_that_shapes_the_model(cache: Path) -> None:
    uri = "model: {source: {uri: 'hf://org/repo'}"
    same = [f"{uri}}}", f"{uri}}}, stages: {{count: 3}}, replicas: 2"]
    different = [
        f"{uri}, revision: abc}}",
        f"{uri}}}, precision: INT8",
        f"{uri}}}, groupSize: 32",
        f"{uri}}}, devices: [CPU]",
        "model: {source: {uri: 'hf://org/other'}}",
        f"model: {{source: {{uri: 'hf://org/repo', sha256: {'a' * 64}}}}}",
    ]
    assert len({path_of(spec) for spec in same}) == 1
    assert len({path_of(spec) for spec in [same[0], *different]}) == 1 + len(different)
    assert path_of(same[0]).parent == cache / "models"
    assert path_of(same[0]).name.startswith("tiny-")


def test_a_compiled_model_lies_where_its_own_options_put_it() -> None:
    """`shoal compile model.yaml --precision F32` must not fill the place in which `shoal run` looks for INT4."""
    model = sharded_model("model: {source: {uri: 'hf://org/repo'}}, groupSize: 32")
    source = model.spec.model.source
    assert source is not None
    changed = with_options(model, Precision.F32, None)
    assert (changed.spec.precision, changed.spec.group_size) == (Precision.F32, None)
    assert cache_path(changed, source) == path_of("model: {source: {uri: 'hf://org/repo'}}, precision: F32")
    assert with_options(model, None, None) == model


def test_another_file_under_the_same_path_is_another_model(tmp_path: Path) -> None:
    spec = f"model: {{source: {{uri: {tmp_path / 'm.gguf'}}}}}"
    (tmp_path / "m.gguf").write_text("one")
    before = path_of(spec)
    assert path_of(spec) == before
    (tmp_path / "m.gguf").write_text("another")
    assert path_of(spec) != before
    with_digest = f"model: {{source: {{uri: {tmp_path / 'm.gguf'}, sha256: {'a' * 64}}}}}"
    before = path_of(with_digest)
    os.utime(tmp_path / "m.gguf", (1, 1))
    assert path_of(with_digest) == before


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ("model: {source: {uri: 'hf://org/repo'}, revision: v1}", "hf://org/repo@v1"),
        ("model: {source: {uri: 'hf://org/repo@v2'}}", "hf://org/repo@v2"),
        ("model: {source: {uri: 'hf://org/repo/m.gguf'}, revision: v1}", "hf://org/repo@v1/m.gguf"),
        ("model: {source: {uri: 'https://host/m.gguf'}, revision: v1}", "https://host/m.gguf"),
        ("model: {source: {uri: 'm.gguf'}}", "file:///models/m.gguf"),
    ],
)
def test_the_source_as_the_compiler_takes_it(spec: str, reference: str) -> None:
    model = sharded_model(spec)
    assert model.spec.model.source is not None
    assert source_reference(model, model.spec.model.source) == reference


@pytest.mark.parametrize(
    ("source", "stem"),
    [
        ("model.Q4_1.gguf", "model.Q4_1"),
        (".", "here"),
        ("../here/", "here"),
        ("hf://org/repo@main", "repo"),
        ("hf://org/repo@main/sub/model.gguf", "model"),
        ("pypi://package==1.0/package/model.gguf", "model"),
    ],
)
def test_a_model_without_a_name_is_called_like_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, stem: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert stem_of(source) == stem


def test_case_49_a_compiled_model_is_found_without_network_or_checkpoint() -> None:
    spec = "model: {source: {uri: 'https://host.invalid/m.gguf'}}"
    manifest = write_model_directory(path_of(spec))
    found = find_or_compile(sharded_model(spec))
    assert (found.path, found.manifest.digest, found.chat) == (path_of(spec), manifest.digest, True)


def test_a_volume_is_a_path_of_this_machine(tmp_path: Path) -> None:
    manifest = write_model_directory(tmp_path / "models" / "tiny")
    model = sharded_model(f"model: {{volume: {{hostPath: {{path: {tmp_path}/models}}, path: tiny}}}}")
    assert find_or_compile(model).manifest.digest == manifest.digest
    assert model_facts(model, fetch=False).total_bytes == 120


@pytest.mark.parametrize(
    ("volume", "kind"),
    [("persistentVolumeClaim: {claimName: c}", "persistentVolumeClaim"), ("image: {reference: 'a/b:1'}", "image")],
)
def test_a_volume_that_only_a_cluster_has_is_refused(volume: str, kind: str) -> None:
    model = sharded_model(f"model: {{volume: {{{volume}}}}}")
    assert model.spec.model.volume is not None
    with pytest.raises(UsageError, match=f"volume.{kind} exists in a cluster only"):
        volume_path(model.spec.model.volume)


@pytest.mark.parametrize(
    ("file", "verify"),
    [("tokenizer/tokenizer.json", False), ("tokenizer/tokenizer.json", True), ("blocks/l1.bin", True)],
)
def test_a_file_that_was_changed_is_refused(tmp_path: Path, file: str, verify: bool) -> None:
    write_model_directory(tmp_path)
    (tmp_path / file).write_text("x" * len(file))
    with pytest.raises(IntegrityError, match=rf"{file} has digest .* its manifest says"):
        find_or_compile(sharded_model(f"model: {{volume: {{hostPath: {{path: {tmp_path}}}}}}}"), verify=verify)


def test_a_volume_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is not a model directory"):
        find_or_compile(sharded_model(f"model: {{volume: {{hostPath: {{path: {tmp_path}}}}}}}"))


def test_a_plan_of_a_remote_checkpoint_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match=r"hf://org/repo is not on this machine.*--fetch"):
        model_facts(sharded_model("model: {source: {uri: 'hf://org/repo'}}"), fetch=False)


CLUSTER = (
    "model: {source: {uri: m.gguf}}, replicas: 3, "
    "stages: {mode: Manual, manual: [{layers: {first: 0, last: 9}}, {layers: {first: 10, last: 29}}]}, "
    "placement: {nodeSelector: {a: b}, sparePods: 1, maxMemoryFraction: 0.5}"
)


def test_what_belongs_to_a_cluster_is_left_out_and_named() -> None:
    model = sharded_model(CLUSTER)
    local = for_this_machine(model)
    assert cluster_only(model) == ["placement.nodeSelector"]
    assert cluster_only(local) == []
    assert local.spec.placement.max_memory_fraction == 0.5
    assert parts_wanted(local) == 7, "three pipelines of two stages, and a standby"


EVERYTHING_OF_A_CLUSTER = (
    "model: {source: {uri: m.gguf}}, "
    "placement: {tolerations: [{operator: Exists}], priorityClassName: low, nodeLimits: [{node: a, memory: 1Gi}]}, "
    "recovery: {replanAfterSeconds: 60, freeAfterSeconds: 60}, image: {pullPolicy: Always}, "
    "router: {service: {port: 9000, type: NodePort}, resources: {limits: {cpu: 1}}, "
    "ingress: {host: h}, apiKeysSecretRef: {name: s}, requestsPerKey: 2, requestsPerMinute: 60}"
)


def test_nothing_of_a_cluster_is_left_out_in_silence() -> None:
    assert cluster_only(sharded_model(EVERYTHING_OF_A_CLUSTER)) == [
        "placement.tolerations",
        "placement.nodeLimits",
        "placement.priorityClassName",
        "recovery.replanAfterSeconds",
        "recovery.freeAfterSeconds",
        "router.service (all but port)",
        "router.ingress",
        "router.apiKeysSecretRef",
        "router.requestsPerKey",
        "router.requestsPerMinute",
        "router.resources",
        "image",
    ]
    https = sharded_model("model: {source: {uri: m.gguf}}, router: {tlsSecretName: t}")
    assert cluster_only(https) == ["router.tlsSecretName"]
    assert cluster_only(sharded_model("model: {source: {uri: m.gguf}}, router: {service: {port: 9000}}")) == []


def test_an_api_that_asks_for_keys_is_not_opened_to_others_without_them() -> None:
    model = sharded_model("model: {source: {uri: m.gguf}}, router: {apiKeysSecretRef: {name: s}}")
    for host in ("127.0.0.1", "::1", "localhost"):
        check_exposure(model, host)
    for host in ("0.0.0.0", "::", "192.168.1.4", "pc-01"):
        with pytest.raises(UsageError, match=r"router\.apiKeysSecretRef asks for API keys"):
            check_exposure(model, host)
    check_exposure(sharded_model("model: {source: {uri: m.gguf}}"), "0.0.0.0")


@pytest.mark.parametrize(
    ("speculative", "asked"),
    [
        ("{}", None),
        ("{mode: Fixed, maxTokens: 4}", None),
        ("{mode: 'Off', draft: {source: {uri: d.gguf}}}", None),
        ("{draft: {source: {uri: d.gguf}, precision: INT8}}", "INT8"),
    ],
)
def test_the_draft_model_is_found_like_any_other_unless_speculation_is_off(
    speculative: str, asked: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = sharded_model(f"model: {{source: {{uri: m.gguf}}}}, scheduler: {{speculative: {speculative}}}")
    assert without_effect(model) == []
    manifest: Any = SimpleNamespace(name="any")
    target, draft = models.LocalModel(tmp_path / "target", manifest), models.LocalModel(tmp_path / "draft", manifest)
    wanted: list[ShardedModel] = []

    def find(model: ShardedModel, *, verify: bool = False) -> models.LocalModel:
        wanted.append(model)
        return draft

    tokens = {target.path: "a", draft.path: "a"}
    monkeypatch.setattr(models, "find_or_compile", find)
    monkeypatch.setattr(models, "read_vocabulary", lambda path, manifest: Vocabulary("any", 9, tokens[path]))
    assert models.find_or_compile_draft(model, target) is (None if asked is None else draft)
    assert [each.spec.precision for each in wanted] == ([] if asked is None else [Precision(asked)])
    for each in wanted:
        assert each.spec.model.source is not None
        assert (each.spec.model.source.uri.rpartition("/")[2], each.metadata.name) == (
            "d.gguf",
            f"{model.metadata.name}-draft",
        )
    if asked is not None:
        tokens[draft.path] = "b"
        with pytest.raises(UsageError, match="choose a draft model of the same family"):
            models.find_or_compile_draft(model, target)


def test_options_override_the_manifest() -> None:
    local = for_this_machine(sharded_model(CLUSTER), stages=3, exact=True, devices=[Device.CPU])
    assert (local.spec.stages.mode, local.spec.stages.manual, parts_wanted(local)) == (StagesMode.AUTO, (), 10)
    assert local.spec.execution.mode is ExecutionMode.EXACT
    assert local.spec.devices == (Device.CPU,)


@pytest.mark.parametrize(("spares", "stages"), [(0, None), (1, None), (2, 2), (3, 2)])
def test_a_standby_gets_a_place_of_its_own_and_no_stage_more(spares: int, stages: int | None) -> None:
    model = sharded_model(f"model: {{source: {{uri: m.gguf}}}}, placement: {{sparePods: {spares}}}")
    machine = Machine(memory_total=64 << 30, memory_free=60 << 30, cores=8, devices=(Device.CPU,))
    facts = ModelFacts.of_manifest(fake_manifest(layers=8))
    plan = local_plan(for_this_machine(model, stages=stages, devices=[Device.CPU]), facts, machine)
    assert len(plan.pipelines[0].stages) == (stages or 1)
    assert len(plan.standbys) == spares
    assert len({stage.node for stage in plan.everywhere}) == (stages or 1) + spares


def test_without_room_for_a_standby_the_stages_run_alone_and_a_line_says_so() -> None:
    model = sharded_model("model: {source: {uri: m.gguf}}, placement: {sparePods: 1}")
    local, facts = for_this_machine(model, devices=[Device.CPU]), ModelFacts.of_manifest(fake_manifest(layers=8))
    machine = Machine(memory_total=64 << 30, memory_free=60 << 30, cores=8, devices=(Device.CPU,))
    roomy = local_plan(local, facts, machine)
    assert (len(roomy.standbys), missing_standbys(local, roomy)) == (1, "")
    needed = int(roomy.pipelines[0].stages[0].memory.total / local.spec.placement.max_memory_fraction)
    tight = local_plan(local, facts, replace(machine, memory_total=3 * needed // 2, memory_free=3 * needed // 2))
    assert (len(tight.pipelines[0].stages), tight.standbys) == (1, ())
    assert "asks for 1, this machine has memory for 0" in missing_standbys(local, tight)
    with pytest.raises(PlanError):
        local_plan(local, facts, replace(machine, memory_total=needed // 2, memory_free=needed // 2))


def test_no_replicas_is_nothing_to_run() -> None:
    with pytest.raises(UsageError, match="replicas is 0: there is nothing to run"):
        for_this_machine(sharded_model("model: {source: {uri: m.gguf}}, replicas: 0"))
