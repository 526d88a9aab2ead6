"""What the first Job of a ShardedModel runs: a source's sizes, before and as they are when it is compiled."""

from __future__ import annotations

from shoal.manifest import Precision
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_from_json
from shoal_stage.compile import CompileOptions, compile_model, resolve_source
from shoal_stage.store.__main__ import main


def test_sizes_are_those_of_the_compiled_model(make_gguf, tmp_path):
    path = make_gguf().path
    (tmp_path / "said").touch()
    options = [f"--cache={tmp_path / 'cache'}", "--precision=INT8", f"--to={tmp_path / 'said'}"]
    assert main(["sizes", str(path), *options]) == 0
    said = facts_from_json((tmp_path / "said").read_text())
    directory = compile_model(resolve_source(str(path), tmp_path), tmp_path / "model", CompileOptions(Precision.INT8))
    assert main(["report", f"--directory={directory}", f"--to={tmp_path / 'said'}"]) == 0
    compiled = facts_from_json((tmp_path / "said").read_text())
    assert said.digest is None
    assert said.shape == compiled.shape
    for early, late in zip(_blocks(said), _blocks(compiled), strict=True):
        # Beside its weights a compiled block holds some constants, which count in a model as small as this one.
        assert late - 1024 <= early <= late
    assert said.head_weights == compiled.head_weights == said.shape.vocab_size * said.shape.hidden_size
    for early, late in zip(said.layer_weights, compiled.layer_weights, strict=True):
        assert late - 1024 <= early <= late


def test_of_a_repository_the_config_is_enough(make_hf, tmp_path, monkeypatch):
    directory = make_hf().path
    monkeypatch.setattr("shoal_stage.compile.sizes.fetch_config", lambda source, cache: directory / "config.json")
    said = tmp_path / "said"
    said.touch()
    assert main(["sizes", "hf://org/repository@main", f"--cache={tmp_path}", f"--to={said}", "--group-size=32"]) == 0
    assert facts_from_json(said.read_text()).total_bytes > 0


def test_a_source_that_makes_no_sense_is_one_line(tmp_path, capsys):
    assert main(["sizes", "ftp://host/model.gguf", f"--cache={tmp_path}", f"--to={tmp_path / 'said'}"]) == 2
    assert "ftp:// is not known" in capsys.readouterr().err


def _blocks(facts: ModelFacts) -> tuple[int, ...]:
    return (facts.embed_bytes, *facts.layer_bytes, facts.head_bytes)
