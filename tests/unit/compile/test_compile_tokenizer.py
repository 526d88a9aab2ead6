"""Tokenizers from GGUF tables and from Hugging Face directories: pieces, special tokens, ends, and what is missing."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from shoal.errors import CheckpointError
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.tokenizer import build_tokenizer
from shoal_stage.compile.tokenizer.pretokenizers import KNOWN
from shoal_stage.compile.tokenizer.source import GgufTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPACE = "▁"
PIECES = [SPACE, "a", "b", "c", "ab", "abc", "bc", f"{SPACE}a", f"{SPACE}abc", "<mark>"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
SPM_KINDS = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(PIECES) - 1), USER_DEFINED]
SPM_SCORES = [0.0] * 259 + [-9.0, -10.0, -11.0, -12.0, -2.0, -3.0, -1.0, -4.0, -5.0, 0.0]


def sentence_piece(**changes):
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SPM_TOKENS,
        "tokenizer.ggml.token_type": SPM_KINDS,
        "tokenizer.ggml.scores": SPM_SCORES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return GgufTokenizer("spm.gguf", metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()})


def byte_level(**changes):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_end|>", "<tool>", "1", "2", "12", "a", "Ġ", "Ġa", "!"],
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, USER_DEFINED, *[NORMAL] * 7],
        "tokenizer.ggml.merges": ["1 2", "Ġ a"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
    }
    return GgufTokenizer("bpe.gguf", metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()})


def built(source, vocab_size=1000):
    result = build_tokenizer(source, vocab_size)
    return result, Tokenizer.from_str(result.files["tokenizer.json"].decode())


def pieces(tokenizer, text, specials=False):
    return tokenizer.encode(text, add_special_tokens=specials).tokens


def test_sentence_piece_merges_the_best_score_first():
    _, tokenizer = built(sentence_piece())
    # "bc" (-1) wins over "ab" (-2); "abc" (-3) then joins a and bc; the space in front comes last (-5).
    assert pieces(tokenizer, "abc") == [f"{SPACE}abc"]
    assert pieces(tokenizer, "ab") == [SPACE, "ab"]
    assert pieces(tokenizer, "a bc") == [f"{SPACE}a", SPACE, "bc"]


@pytest.mark.parametrize("text", ["abc", "a bc", "  a  ", "é😀", "ไทย", "世界\n\t"])
def test_sentence_piece_falls_back_to_bytes_and_comes_back(text):
    _, tokenizer = built(sentence_piece())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert 0 not in ids


def test_sentence_piece_adds_its_beginning_and_finds_special_tokens():
    result, tokenizer = built(sentence_piece())
    assert pieces(tokenizer, "a", specials=True) == ["<s>", f"{SPACE}a"]
    assert "</s>" in pieces(tokenizer, "a</s>")
    assert "<mark>" in pieces(tokenizer, "a<mark>b")
    assert tokenizer.decode(tokenizer.encode("a</s>").ids) == "a"
    assert (result.bos_token_id, result.eos_token_ids) == (1, (2,))
    without = built(sentence_piece(add_bos_token=False, add_space_prefix=False))[1]
    assert pieces(without, "a", specials=True) == ["a"]


def test_byte_level_cuts_digits_as_its_vocabulary_does():
    assert pieces(built(byte_level())[1], "12 a") == ["12", "Ġa"]
    assert pieces(built(byte_level(pre="smollm"))[1], "12 a") == ["1", "2", "Ġa"]
    assert pieces(built(byte_level(pre="qwen2"))[1], "12 a") == ["1", "2", "Ġa"]
    assert pieces(built(byte_level(pre="llama-bpe"))[1], "12 a") == ["12", "Ġa"]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_known_way_to_cut_loads_and_loses_nothing(name):
    _, tokenizer = built(byte_level(pre=name))
    assert tokenizer.decode(tokenizer.encode("12 a!").ids) == "12 a!"


def test_all_ends_are_found_and_special_tokens_stay_out_of_answers():
    result, tokenizer = built(byte_level())
    assert result.eos_token_ids == (0, 1)
    assert json.loads(result.files["generation_config.json"])["eos_token_id"] == [0, 1]
    assert result.files["chat_template.jinja"] == b"{{ messages }}"
    ids = tokenizer.encode("a<|im_end|><tool>").ids
    assert tokenizer.decode(ids) == "a<tool>"
    assert built(byte_level(eot_token_id=5))[0].eos_token_ids == (0, 5, 1)


def test_a_way_to_cut_that_is_not_given_is_said():
    source = byte_level()
    del source.metadata["tokenizer.ggml.pre"]
    assert "GPT-2's way is taken" in built(source)[0].notes[0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (byte_level(tokens=None), r"bpe\.gguf holds no tokenizer"),
        (byte_level(merges=None), "merges is missing"),
        (byte_level(merges=["nopair"]), "'nopair' is no pair"),
        (byte_level(merges=["x y"]), "do not hold together"),
        (byte_level(pre="martian"), "'martian', which is not known; known are"),
        (byte_level(model="rwkv"), "kind 'rwkv'; known are gpt2 and llama"),
        (byte_level(token_type=[1]), "not the type of each"),
        (sentence_piece(scores=None), "scores is missing"),
    ],
)
def test_a_missing_or_unknown_tokenizer_is_named(source, message):
    with pytest.raises(CheckpointError, match=message):
        build_tokenizer(source, 1000)


def test_more_tokens_than_the_model_has_are_refused():
    with pytest.raises(CheckpointError, match="has 10 tokens, its model a vocabulary of 9"):
        build_tokenizer(byte_level(), 9)


def test_a_directory_without_tokenizer_is_refused(make_hf):
    tiny = make_hf("llama")
    checkpoint = open_checkpoint(tiny.path)
    (tiny.path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used"):
        build_tokenizer(checkpoint.tokenizer, 96)
    (tiny.path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        build_tokenizer(checkpoint.tokenizer, 96)


def test_a_directory_brings_its_files_and_ends(make_hf):
    tiny = make_hf("llama", eos_token_id=[1, 7])
    (tiny.path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": 5}))
    result = build_tokenizer(open_checkpoint(tiny.path).tokenizer, 96)
    assert result.eos_token_ids == (5, 1, 7)
    assert result.bos_token_id == 0
    assert json.loads(result.files["generation_config.json"])["temperature"] == 0.6
    assert result.files["chat_template.jinja"] == b"{{ messages[0].content }}"
    named = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]
    (tiny.path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert build_tokenizer(open_checkpoint(tiny.path).tokenizer, 96).files["chat_template.jinja"] == b"D"
    (tiny.path / "chat_template.jinja").write_text("J")
    assert build_tokenizer(open_checkpoint(tiny.path).tokenizer, 96).files["chat_template.jinja"] == b"J"
