"""Loading a model directory's text side, and what is said when a file of it cannot be used."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from tokenizers import processors

from shoal.errors import ManifestError
from shoal.manifest import Block, BlockKind, FileEntry, Manifest, ModelShape, Precision
from shoal_router.text.fake import CHATML, fake_tokenizer
from shoal_router.text.model import GenerationConfig, load_text_model
from shoal_router.text.template import TemplateRefused


def manifest(**fields) -> Manifest:
    nothing = FileEntry(path="x", bytes=0, sha256="0" * 64)
    kinds = (BlockKind.EMBED, BlockKind.LAYER, BlockKind.HEAD)
    shape = ModelShape(
        family="llama", layers=1, hidden_size=8, heads=1, kv_heads=1, head_size=8, vocab_size=259, max_context=64
    )
    return Manifest(
        name="tiny",
        source_sha256="0" * 64,
        precision=Precision.F32,
        shape=shape,
        tied_embeddings=True,
        blocks=tuple(Block(name=kind, kind=kind, xml=nothing, bin=nothing, weight_bytes=0) for kind in kinds),
        **fields,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (tmp_path / "manifest.json").write_bytes(manifest(bos_token_id=1, eos_token_ids=(2,)).canonical_json())
    (folder / "tokenizer.json").write_text(fake_tokenizer().to_str())
    (folder / "chat_template.jinja").write_text("{{ bos_token }}" + CHATML + "{{ eos_token }}{{ strftime_now('%Y') }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0], "temperature": 0.2, "do_sample": true}')
    return tmp_path


def test_a_directory_is_loaded_whole(directory: Path) -> None:
    text = load_text_model(directory, now=lambda: datetime(2031, 1, 1))
    assert text.name == "tiny"
    assert text.digest == manifest(bos_token_id=1, eos_token_ids=(2,)).digest
    assert text.vocab_size == 259
    assert text.stop_token_ids == {0, 2}
    assert text.defaults == GenerationConfig(eos_token_id=[2, 0], temperature=0.2)
    prompt = text.render_chat([{"role": "user", "content": "é"}])
    assert prompt == ("<|im_start|><|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n<|im_end|>2031")
    assert text.decode(text.encode("aé😀", add_special_tokens=True)) == "aé😀"


def test_a_bare_prompt_gets_the_tokenizers_special_tokens_and_a_chat_prompt_does_not(directory: Path) -> None:
    tokenizer = fake_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    (directory / "tokenizer" / "tokenizer.json").write_text(tokenizer.to_str())
    text = load_text_model(directory)
    assert text.encode("a", add_special_tokens=True) == (1, 100)
    assert text.encode("a", add_special_tokens=False) == (100,)


def test_a_tokenizer_file_from_training_neither_cuts_nor_pads(directory: Path) -> None:
    tokenizer = fake_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    (directory / "tokenizer" / "tokenizer.json").write_text(tokenizer.to_str())
    assert len(load_text_model(directory).encode("abcdefgh", add_special_tokens=False)) == 8


def test_optional_files_may_be_absent(directory: Path) -> None:
    (directory / "tokenizer" / "chat_template.jinja").unlink()
    (directory / "tokenizer" / "generation_config.json").unlink()
    text = load_text_model(directory)
    assert text.stop_token_ids == {2}
    assert text.defaults == GenerationConfig()
    with pytest.raises(TemplateRefused, match="no chat template: use /v1/completions"):
        text.render_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing: compile the model again"),
        ("tokenizer.json", "{", "tokenizer.json cannot be used"),
        ("tokenizer.json", "\ud800", "tokenizer.json cannot be read"),
        ("chat_template.jinja", "{% for %}", r"chat_template\.jinja, line 1"),
        ("generation_config.json", "[]", "generation_config.json cannot be used: document"),
        ("generation_config.json", '{"temperature": -1}', "generation_config.json cannot be used: temperature"),
        ("generation_config.json", '{"top_p": "x"}', "generation_config.json cannot be used: top_p"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(directory: Path, name: str, content: str | None, message: str) -> None:
    path = directory / "tokenizer" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ManifestError, match=message) as caught:
        load_text_model(directory)
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_of_decoder_is_told_when_loading(directory: Path) -> None:
    source = json.loads(fake_tokenizer().to_str()) | {"decoder": None}
    (directory / "tokenizer" / "tokenizer.json").write_text(json.dumps(source))
    with pytest.raises(ManifestError, match="decoder of kind none"):
        load_text_model(directory)
